"""Audits of a live fleet: certificates and their verifier, explanations, and checks of its file.

This package is private: use what `turnout.live` exports.
"""

"""Policies from the literature.

This package is private: use what `turnout.policies` exports.
"""

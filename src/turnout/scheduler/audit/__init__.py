"""Audits of a live fleet: certificates, verification, explanations, doctor.

This package is private: use what `turnout.scheduler` exports.
"""

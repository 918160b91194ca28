"""Explanations: why a client was selected, or what it would have needed.

This package is private: use what `turnout.policies` and `turnout` export.
"""

"""Opening and closing rounds of a live fleet.

This package is private: use what `turnout.live` exports.
"""

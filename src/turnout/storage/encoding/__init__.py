"""Arrays and numbers as bytes: the one encoding of what is stored, and limits for files that others wrote.

This package is private: use what `turnout.lab` exports.
"""

"""Arrays and numbers as bytes: packing, compact states, and limits for what is read from a file.

This package is private: use what `turnout.lab` exports.
"""

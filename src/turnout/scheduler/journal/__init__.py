"""The journal of a live fleet: its file, its replay, its reader.

This package is private: use what `turnout.scheduler` exports.
"""

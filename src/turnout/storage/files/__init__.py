"""SQLite files that survive a killed process: opening, locking, acknowledged commits, copies.

This package is private: use what `turnout.lab` exports.
"""

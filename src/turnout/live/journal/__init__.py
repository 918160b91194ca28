"""The journal of a live fleet: its file, the replay of its events, and its reader.

This package is private: use what `turnout.live` exports.
"""

"""What keeps a live fleet running: amendments, notices, metrics, and the deletion of old rounds.

This package is private: use what `turnout.live` exports.
"""

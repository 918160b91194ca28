"""Which nodes are connected, which clients they are, and what is known about them.

This package is private: use what `turnout.adapters.flower` exports.
"""

"""Which strategies, replies and models cannot be used.

This package is private: use what `turnout.adapters.flower` exports.
"""

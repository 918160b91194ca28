"""What is saved of a run, so that it continues after a restart.

This package is private: use what `turnout.adapters.flower` exports.
"""

"""Training without rounds: a client trains whenever a slot is free, and every so many updates make a new model.

This package is private: use what `turnout.adapters.flower` exports.
"""

"""A round of Flower: its cohort, its messages and replies, and the aggregation.

This package is private: use what `turnout.adapters.flower` exports.
"""

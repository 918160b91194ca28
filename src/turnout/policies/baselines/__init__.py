"""Baseline policies: random selection, round robin, oracles, FedCS, sampling by data size.

This package is private: use what `turnout.policies` exports.
"""

"""Runs of policies in worlds: plans, sweeps, and the store of runs."""

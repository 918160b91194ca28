"""Simulated worlds: the paper's, recorded ones, and traces of devices."""

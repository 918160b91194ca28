"""Baseline policies: random selection, round robin, oracles, FedCS, sampling by data size."""

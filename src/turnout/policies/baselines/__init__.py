"""Baseline policies: random, round robin, oracles, FedCS, by data size."""

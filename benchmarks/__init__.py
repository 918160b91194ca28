"""Compares turnout with reference implementations that are not part of the package: `python -m benchmarks --help`."""

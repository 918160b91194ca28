"""Measures how many small faults the tests notice: `python -m mutants` in a checkout."""

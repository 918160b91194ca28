"""Benchmarks of the installed package. Each one reports ratios of times measured in turns in one run.

Absolute times differ between machines, and on one machine from hour to hour; ratios of one run do not. Comparisons
with reference implementations (literal algorithms, a plain training loop, a browser) are in the folder `benchmarks/`
of the repository.
"""

"""Benchmarks of turnout, and reference implementations that it is compared with: `python -m benchmarks --help`.

Absolute times differ between machines, and on one machine from hour to hour. So each benchmark measures its tasks
alternately in one run, and reports ratios. Modules of benchmarks import neither torch nor Flower before they measure.
"""

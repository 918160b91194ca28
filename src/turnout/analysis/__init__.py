"""Analysis of runs and fleets: metrics, statistics, theory, tuning, replay and explanations.

This package is private except for `tuning.Goal` and `tuning.find_speed_weight`.
"""

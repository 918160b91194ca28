"""Analysis of runs and fleets: metrics, promises, statistics, theory, tuning, replay and explanations.

This package is private except for `Goal`, `find_tolerance`, `find_guaranteed_rate` and `find_speed_weight` of `tuning`.
"""

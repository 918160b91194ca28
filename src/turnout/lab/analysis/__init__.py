"""Analysis of runs and fleets: metrics, promises, statistics, theory, tuning, replay and explanations.

This package is private except for the names that docs/api.md lists: those of `slots` and `tuning`.
"""

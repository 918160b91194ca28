"""Analysis of runs and fleets: metrics, promises, statistics, theory, replay and explanations.

This package is private except for the names that docs/api.md lists: those of `slots`.
"""

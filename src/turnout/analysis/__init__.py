"""Analysis of runs and fleets: metrics, statistics, theory, tuning, replay and explanations."""

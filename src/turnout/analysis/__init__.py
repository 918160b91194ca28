"""Analysis of runs and fleets: metrics, theory, tuning, replay, explanations."""

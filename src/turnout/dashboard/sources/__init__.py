"""Readers of runs and fleets that supply the data of the dashboard."""

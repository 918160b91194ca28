"""Checks of the file of a fleet."""

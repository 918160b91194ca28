"""Explanations of a selection."""

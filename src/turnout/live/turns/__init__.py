"""Turns of a live fleet: rounds and slots, from the decision to the settlement."""

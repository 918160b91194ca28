"""Turns without rounds in a live fleet: one client whenever a slot is free.

The modules of this package are private.
"""

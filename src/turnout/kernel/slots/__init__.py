"""Turns without rounds: decisions about one slot, and what can be guaranteed then.

This package is private.
"""

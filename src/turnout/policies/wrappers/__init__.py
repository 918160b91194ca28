"""Wrappers: policies around a policy."""

"""Recorded and generated device traces, and the world that plays them."""

"""Explanations: why a client was selected, or what it would have needed."""

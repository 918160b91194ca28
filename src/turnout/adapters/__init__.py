"""Engines that drive us: each needs an extra of its own, and imports nothing of the others."""

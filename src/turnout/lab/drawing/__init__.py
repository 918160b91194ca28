"""Figures with matplotlib: the common style, and the figures of commands. Drawing never plays a run."""

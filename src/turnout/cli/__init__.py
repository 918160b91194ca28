"""The command line."""

from turnout.cli.app import main

__all__ = ["main"]

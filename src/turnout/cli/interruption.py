"""Ctrl-C in commands that save what they have finished."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


class Interrupted(Exception):
    """The user pressed Ctrl-C in a command that has saved its finished runs."""


@contextmanager
def resumable() -> Iterator[None]:
    """Turns Ctrl-C into `Interrupted`, for which the command line prints how to continue."""
    try:
        yield
    except KeyboardInterrupt:
        raise Interrupted from None

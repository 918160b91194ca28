"""Ctrl-C in commands that can continue."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager


class Interrupted(Exception):
    """The user pressed Ctrl-C in a command that saves its runs, or can.

    Attributes:
        saved: Whether finished runs are in a store.
    """

    def __init__(self, *, saved: bool) -> None:
        super().__init__()
        self.saved = saved

    def describe(self, arguments: Sequence[str]) -> str:
        """Returns the message with the exact command that continues, given the arguments of this one."""
        if self.saved:
            command = shlex.join(["turnout", *arguments])
            return f"interrupted: finished runs are saved. To continue: {command}"
        command = shlex.join(["turnout", *arguments, "--store", "runs.turnout"])
        return f"interrupted: nothing was saved. To keep finished runs, and continue after an interruption: {command}"


@contextmanager
def resumable(*, saved: bool = True) -> Iterator[None]:
    """Turns Ctrl-C into `Interrupted`, for which the command line prints how to continue."""
    try:
        yield
    except KeyboardInterrupt:
        raise Interrupted(saved=saved) from None

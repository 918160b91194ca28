"""A program is started again if its Ray does not come up, and only then."""

from __future__ import annotations

import subprocess
from collections.abc import Callable

import pytest

from ray_service import STARTS, started


def starting(programs: list[str]) -> Callable[[], subprocess.Popen[str]]:
    """Returns a function that starts the next of these shell programs."""
    left = iter(programs)
    return lambda: subprocess.Popen(
        ["sh", "-c", next(left)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def test_a_start_is_repeated_until_ray_is_up() -> None:
    programs = ["echo the raylet died; exit 1", "echo connecting; echo Ray is up: here; cat; echo then", "exit 9"]
    with started(starting(programs)) as (process, printed):
        assert printed == "here"
        output, _ = process.communicate()
        assert (output, process.returncode) == ("then\n", 0)


def test_a_failure_after_the_start_is_not_repeated() -> None:
    with started(starting(["echo Ray is up: here; exit 3"])) as (process, _):
        assert process.wait() == 3


def test_what_was_printed_is_shown_if_ray_never_comes_up() -> None:
    programs = [f"echo attempt {number}; exit 1" for number in range(STARTS)]
    with pytest.raises(AssertionError, match=r"did not come up:\nattempt 0\nattempt 1"), started(starting(programs)):
        pass

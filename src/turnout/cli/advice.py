"""Translates library errors and Ctrl-C to the command line: which option or command solves the problem, or continues.

Library messages speak of Python arguments and are complete without this advice.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from turnout.errors import PluginError, SettingError, TurnoutError

#: The option for the argument that an error names.
OPTIONS = {
    "run": "--run NUMBER selects a run",
    "port": "--host ADDRESS and --port NUMBER select another address",
    "tokens": "turnout fleet tokens create FLEET --role server makes one; --no-tokens serves this machine without any",
    "clients": "--client ID names a client; --clients FILE reads one id per line",
    "suite": "turnout study leaderboard traces plays recorded clients; omit --traces for other suites",
}
#: The command that makes what is missing.
FILES = {
    "token": "turnout fleet tokens create FLEET --role server creates one",
    "fleet": "turnout fleet create FLEET creates one",
}
#: Some problems are text; each phrase names a Python function or argument that the command line has too.
PHRASES = {
    "the columns of a Layout": "--column OURS=THEIRS gives the name of a column in the file",
    "`on` of a Layout": "--on STATE lists a state that means available",
    "returns all)": "turnout traces describe lists all problems",
    "write each part to its own file": "--part NAME writes one part",
    "is a store of runs, not": "turnout runs show FILE lists its runs",
    "is a fleet, not": "turnout fleet status FLEET describes it",
    "is a plan in TOML, n": "turnout simulate --config FILE plays its runs",
    "cannot be kept for the clients of this fleet": "--allow-infeasible accepts a promise that cannot be kept",
    "cannot be kept with cohort_size": "--set allow_infeasible=true accepts a promise that cannot be kept",
    "or create one with Scheduler.open(path)": "turnout fleet create FLEET creates one",
}
#: Advice for Python programs, which is left out in a shell.
PYTHON = (
    ", or pass allow_infeasible=True to go on without a guarantee",
    ", or create one with Scheduler.open(path)",
    ", or open it without read_only=True",
    ": RunStore.runs() lists the runs",
)


def advice_for(error: TurnoutError) -> list[str]:
    """Returns the options and commands that help with this error, most specific first."""
    advice = []
    if error.dataset is not None:
        advice.append(f"turnout data fetch {error.dataset} downloads it")
    if error.damaged is not None:
        advice.append(f"turnout fleet doctor {error.damaged} lists what is damaged")
    if isinstance(error, SettingError) and error.argument in OPTIONS:
        advice.append(OPTIONS[error.argument])
    if isinstance(error, PluginError) and error.argument == "plugin":
        advice.append(f"turnout --with {error.name}, before the command, loads it")
    if error.argument in FILES:
        advice.append(FILES[error.argument])
    if error.argument == "accept_older":
        advice.append(f"turnout fleet doctor {error.damaged} --accept-older does so for a fleet")
    if error.argument == "run":
        advice.append("turnout runs show STORE lists the runs")
    advice.extend(hint for phrase, hint in PHRASES.items() if phrase in str(error))
    return advice


def describe(error: TurnoutError) -> str:
    """Returns the message of an error, followed by the advice of the command line."""
    advice, message = advice_for(error), without_python(str(error))
    return f"{message}. Try: {'; '.join(advice)}" if advice else message


def without_python(message: str) -> str:
    """Returns the message of an error without its advice for Python programs."""
    for phrase in PYTHON:
        message = message.replace(phrase, "")
    return message


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

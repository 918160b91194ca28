"""What happens if workers die or are interrupted."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path

import pytest

from turnout.errors import ClusterError
from turnout.lab.runs import executors
from turnout.lab.runs.executors import JoblibExecutor, ignored_interrupts


def die(folder: Path) -> None:
    """Ends the process without a result."""
    (folder / str(os.getpid())).touch()
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize("repeats", [0, 1])
def test_a_task_whose_workers_always_die_starts_again_a_few_times_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, repeats: int
) -> None:
    monkeypatch.setattr(executors, "MAX_REPEATS", repeats)
    with pytest.raises(ClusterError, match=f"worker processes died {repeats + 1} times in a row, and no run was"):
        list(JoblibExecutor(2).run(die, [tmp_path]))
    assert len(list(tmp_path.iterdir())) == repeats + 1


def test_interrupts_are_ignored_in_the_main_thread_only() -> None:
    def read() -> None:
        with ignored_interrupts():
            result.append(signal.getsignal(signal.SIGINT))

    result: list[object] = []
    before = signal.getsignal(signal.SIGINT)
    other = threading.Thread(target=read)
    other.start()
    other.join()
    read()
    assert result == [before, signal.SIG_IGN]
    assert signal.getsignal(signal.SIGINT) is before

"""Tasks of distributed training: some runs for some time, from where they were left, in a worker."""

from __future__ import annotations

import getpass
import os
import tempfile
from collections.abc import Iterator, Mapping
from itertools import count
from pathlib import Path
from typing import IO, Any, NamedTuple

from turnout.lab.columns import RoundColumns
from turnout.lab.runs.carried import Carried, adopt_plugins
from turnout.lab.runs.plans import RunPlan
from turnout.lab.runs.sweep import check_worker_version
from turnout.lab.training.batched import train_for
from turnout.lab.training.learner_cache import torch_device
from turnout.storage.encoding.packing import pack_snapshot, unpack_snapshot
from turnout.storage.files.system import try_lock

_claimed: IO[bytes] | None = None  # holds the lock of this process on its GPU


class Segment(NamedTuple):
    """Where a run resumes: the number of rounds that were played, and the state after them as bytes."""

    done: int = 0
    data: bytes = b""

    @classmethod
    def after(cls, done: int, state: Mapping[str, Any]) -> Segment:
        """Returns the segment that follows `done` rounds."""
        return cls(done, pack_snapshot(state))

    def state(self) -> dict[str, Any]:
        """Returns the state of policy and world."""
        return unpack_snapshot(self.data)


class TrainingTask(NamedTuple):
    """What a worker gets.

    Attributes:
        version: The version of turnout.
        device: The torch device.
        seconds: The time after which the runs are saved and returned.
        runs: The plan of each run, and where it resumes.
        carried: The plug-ins that only the process that started the study can find.
    """

    version: str
    device: str
    seconds: float
    runs: list[tuple[dict[str, Any], Segment]]
    carried: list[Carried]


class TrainingTaskResult(NamedTuple):
    """What a worker returns.

    Attributes:
        made_by: What made the runs (`code_version`).
        setup_seconds: The time before the first round.
        runs: The new rounds of each run as bytes, and where it resumes, or None if it is finished.
    """

    made_by: str
    setup_seconds: float
    runs: list[tuple[bytes, Segment | None]]


class _Part:
    """The next rounds of a run, in memory."""

    def __init__(self, segment: Segment) -> None:
        self._segment = segment
        self._columns: list[RoundColumns] = []
        self._state: Mapping[str, Any] | None = None

    def begin(self, clients: int) -> None:
        """Has nothing to do."""

    def snapshot(self) -> tuple[int, dict[str, Any]] | None:
        """Returns where the run resumes."""
        return (self._segment.done, self._segment.state()) if self._segment.data else None

    def elapsed(self) -> float:
        """Returns 0: the rounds before are stored elsewhere, and nobody asks for their time."""
        return 0.0

    def append(self, columns: RoundColumns, *, snapshot: Mapping[str, Any] | None, finish: bool) -> None:
        """Keeps rounds, and the state after them."""
        self._columns.append(columns)
        self._state = None if finish else snapshot

    def result(self) -> tuple[bytes, Segment | None]:
        """Returns the new rounds, and where the run resumes; None if it is finished."""
        columns = RoundColumns.concatenate(self._columns)
        done = self._segment.done + len(columns)
        return columns.to_bytes(), None if self._state is None else Segment.after(done, self._state)


def train_task(task: TrainingTask) -> TrainingTaskResult:
    """Trains the runs of a task in a worker, until they are finished or the time of the task is over."""
    check_worker_version(task.version)
    adopt_plugins(task.carried)
    parts = [(RunPlan.from_dict(plan), _Part(segment)) for plan, segment in task.runs]
    made_by, setup = train_for(task.seconds, parts, device=claim_gpu() if task.device == "cuda" else task.device)
    return TrainingTaskResult(made_by, setup, [part.result() for _, part in parts])


def claim_gpu() -> str:
    """Returns a GPU for this process: one that no other worker of this machine has claimed, if there is one.

    A lock on a file marks a claim, so it ends with its process. If there are more workers than GPUs, they share them
    evenly. A worker that sees one GPU only, as on Ray, has that one.
    """
    global _claimed
    torch_device("cuda")
    import torch

    gpus = torch.cuda.device_count()
    if gpus == 1:
        return "cuda"
    if _claimed is None:
        _claimed = next(_free_claims())
    return f"cuda:{int(Path(_claimed.name).suffix[1:]) % gpus}"


def _free_claims() -> Iterator[IO[bytes]]:
    """Yields the files of claims that this process holds now, with the numbers 0, 1, 2, … as their endings."""
    user = os.getuid() if hasattr(os, "getuid") else getpass.getuser()  # Windows has names only
    folder = Path(tempfile.gettempdir()) / f"turnout-gpus-{user}"
    folder.mkdir(mode=0o700, exist_ok=True)
    for number in count():
        file = (folder / f"claim.{number}").open("wb")
        if try_lock(file.fileno()):
            yield file
        else:
            file.close()

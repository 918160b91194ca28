"""A server app that can be interrupted at any moment and restarted.

As a program it reads one JSON object per line, {"path": …, "out": …, "rounds": …, "die_after": seconds}, and forks a
child for each, so that imports are paid for once. The child starts or resumes the run on this fleet and writes its
result to "out"; after "die_after" seconds it is killed. The program prints the exit code of each child.
"""

from __future__ import annotations

import json
import logging
import math
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from flwr.app import ArrayRecord, MetricRecord
from flwr.serverapp import strategy as stock
from flwr.serverapp.strategy import Result, Strategy

from adapters.flower.in_process import (
    InProcessGrid,
    fair_selection,
    model,
    named_nodes,
    open_to_all,
    partitions,
    weights,
)
from turnout.adapters.flower.resume.saved_run import RunFiles
from turnout.lab import PaperWorld
from turnout.live import Scheduler

ROUNDS, CLIENTS = 6, 6
FLEET: Mapping[str, Any] = {"settings": {"cohort_size": 2, "guaranteed_rate": 0.2}, "deadline": 60.0}
STRATEGIES: Mapping[str, Callable[[], Strategy]] = {
    "FedAvg": open_to_all,
    "FedAvgM": lambda: open_to_all(stock.FedAvgM, server_learning_rate=0.5, server_momentum=0.9),
    "FedAdam": lambda: open_to_all(stock.FedAdam),
    "FedYogi": lambda: open_to_all(stock.FedYogi),
    "QFedAvg": lambda: open_to_all(stock.QFedAvg, client_learning_rate=0.1),
    "adaptive clipping": lambda: stock.DifferentialPrivacyServerSideAdaptiveClipping(
        open_to_all(stock.FedAdam), 0.0, 2, initial_clipping_norm=6.0, clipped_count_stddev=0.0
    ),
}


def play(path: Path, strategy: Strategy, **options: Any) -> Result:
    """Starts or resumes a run with new objects, on the fleet at this path."""
    with Scheduler.open(path, **FLEET) as scheduler:
        return play_on(scheduler, strategy, **options)


def play_on(
    fleet: Scheduler | str,
    strategy: Strategy,
    *,
    rounds: int = ROUNDS,
    simulated: bool = True,
    checkpoint: Callable[[], object] = lambda: None,
    **settings: Any,
) -> Result:
    """Starts or resumes a run with new objects; calls `checkpoint` whenever the run may be interrupted."""
    world = PaperWorld(7, clients=CLIENTS, availability=0.7) if simulated else None
    connected = InProcessGrid(partitions(CLIENTS) if simulated else named_nodes(CLIENTS, seconds()))
    connected.before = lambda _: checkpoint()

    def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
        checkpoint()
        return MetricRecord({"sum": sum(weights(arrays)), "round": server_round})

    fair = fair_selection(strategy, fleet, **{"simulated": world, "poll": 0.25, **settings})
    return fair.start(connected, model(1.0, -2.0), num_rounds=rounds, evaluate_fn=evaluate)


def seconds() -> list[float]:
    """Returns the training time of each client without a simulated world."""
    return [1.0 + row / 4 for row in range(CLIENTS)]


def as_dict(result: Result) -> dict[str, Any]:
    """Returns the model and all metrics of a result."""
    return {
        "weights": weights(result.arrays),
        **{
            kind: {str(number): dict(record) for number, record in by_round.items()}
            for kind, by_round in (
                ("train", result.train_metrics_clientapp),
                ("evaluate", result.evaluate_metrics_clientapp),
                ("server", result.evaluate_metrics_serverapp),
            )
        },
    }


# Interrupted by an exception


class Killed(BaseException):
    """An exception that no code handles, in place of kill -9."""


class Checkpoints:
    """Counts the moments before and after each write and each message of a run, and interrupts it at one of them."""

    def __init__(self, die_at: int | None = None) -> None:
        self.count, self.die_at = 0, die_at

    def checkpoint(self) -> None:
        self.count += 1
        if self.count == self.die_at:
            raise Killed

    @contextmanager
    def installed(self) -> Iterator[None]:
        with pytest.MonkeyPatch.context() as patch:
            for kind, names in (
                (RunFiles, ("write", "write_metrics", "append_metrics", "finish")),
                (Scheduler, ("register", "choose", "report", "report_many", "report_failure", "close_round")),
            ):
                for name in names:
                    patch.setattr(kind, name, self._wrap(getattr(kind, name)))
            yield

    def _wrap(self, method: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            self.checkpoint()
            value = method(*args, **kwargs)
            self.checkpoint()
            return value

        return wrapped


# Killed by a signal


def run_in_child(request: dict[str, Any]) -> int:
    """Runs a request in a forked child, kills it after its time, and returns its exit code."""
    child = os.fork()
    if child == 0:
        _run_child(request)
    end = time.monotonic() + request.get("die_after", math.inf)
    while time.monotonic() < end:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.002)
    os.kill(child, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def _run_child(request: dict[str, Any]) -> None:
    code = 1
    try:
        result = play(Path(request["path"]), STRATEGIES["FedAdam"](), rounds=request["rounds"])
        Path(request["out"]).write_text(json.dumps(as_dict(result)))
        code = 0
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        os._exit(code)


if __name__ == "__main__":
    logging.getLogger("flwr").handlers.clear()
    for line in sys.stdin:
        print(run_in_child(json.loads(line)), flush=True)

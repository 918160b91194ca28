"""A server app that may be ended at any moment, and started again.

Run as a program it takes orders, one JSON object a line, and forks a child for each, from a warm process: {"path": …,
"out": …, "die_after": seconds} plays the run on this fleet from wherever it is, writes what it came to, and is killed
after so many seconds, if it still lives.
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

from adapters.flower.in_process import InProcessGrid, model, named_nodes, open_to_all, partitions, weights
from turnout.adapters.flower import FairSelection
from turnout.adapters.flower.saved_run import RunFiles
from turnout.scheduler import Scheduler
from turnout.simulator import PaperWorld

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


def play(
    path: Path,
    strategy: Strategy,
    *,
    rounds: int = ROUNDS,
    grid: InProcessGrid | None = None,
    simulated: bool = True,
    passing: Callable[[], object] = lambda: None,
    **settings: Any,
) -> Result:
    """A run from wherever it is: all objects are new. `passing`: is called at every moment at which it may end."""
    world = PaperWorld(7, clients=CLIENTS, availability=0.7) if simulated else None
    connected = grid or InProcessGrid(partitions(CLIENTS) if simulated else named_nodes(CLIENTS, seconds()))
    connected.before = lambda _: passing()

    def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
        passing()
        return MetricRecord({"sum": sum(weights(arrays)), "round": server_round})

    with Scheduler.open(path, **FLEET) as scheduler:
        fair = FairSelection(strategy, scheduler, simulated=world, poll=0.25, **settings)
        return fair.start(connected, model(1.0, -2.0), num_rounds=rounds, evaluate_fn=evaluate)


def seconds() -> list[float]:
    """How long each client takes where no world tells."""
    return [1.0 + row / 4 for row in range(CLIENTS)]


def told(result: Result) -> dict[str, Any]:
    """All that a run came to."""
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


# Ended from within


class Killed(BaseException):
    """Nothing in a program expects this, as nothing expects a kill -9."""


class Moments:
    """Counts the moments of a run before and after all that it writes and sends, and ends it at one of them."""

    def __init__(self, die_at: int | None = None) -> None:
        self.count, self.die_at = 0, die_at

    def passing(self) -> None:
        self.count += 1
        if self.count == self.die_at:
            raise Killed

    @contextmanager
    def watched(self) -> Iterator[None]:
        with pytest.MonkeyPatch.context() as patch:
            for kind, names in (
                (RunFiles, ("write", "write_metrics", "finish")),
                (Scheduler, ("register", "choose", "report", "failed", "close_round")),
            ):
                for name in names:
                    patch.setattr(kind, name, self._around(getattr(kind, name)))
            yield

    def _around(self, does: Callable[..., Any]) -> Callable[..., Any]:
        def done(*args: Any, **more: Any) -> Any:
            self.passing()
            given = does(*args, **more)
            self.passing()
            return given

        return done


# Killed from without


def obey(order: dict[str, Any]) -> int:
    """Fork, let the child play, see it die; how it ended."""
    child = os.fork()
    if child == 0:
        _be_the_child(order)
    patience = time.monotonic() + order.get("die_after", math.inf)
    while time.monotonic() < patience:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.002)
    os.kill(child, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def _be_the_child(order: dict[str, Any]) -> None:
    code = 1
    try:
        result = play(Path(order["path"]), STRATEGIES["FedAdam"](), rounds=order["rounds"])
        Path(order["out"]).write_text(json.dumps(told(result)))
        code = 0
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        os._exit(code)


if __name__ == "__main__":
    logging.getLogger("flwr").handlers.clear()
    for line in sys.stdin:
        print(obey(json.loads(line)), flush=True)

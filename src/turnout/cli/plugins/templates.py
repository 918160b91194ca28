"""The files that `turnout new` writes, for `string.Template`: $name, $module, $cls, $version."""

from __future__ import annotations

from collections.abc import Mapping

PROJECT = """\
[build-system]
requires = ["setuptools>=64"]
build-backend = "setuptools.build_meta"

[project]
name = "$name"
version = "0.1.0"
description = "A $kind for turnout"
readme = "README.md"
requires-python = ">=3.11"
dependencies = [$dependencies]

[project.optional-dependencies]
test = ["pytest"]

[project.entry-points."turnout.$group"]
$name = "$module:$cls"

[tool.setuptools.packages.find]
where = ["src"]

[tool.pytest.ini_options]
testpaths = ["tests"]
pythonpath = ["src"]
"""

README = """\
# $name

A $kind for [turnout](https://pypi.org/project/turnout/), in `src/$module/$kind.py`.

    pip install -e .
    $use
    python -m pytest

The entry point in `pyproject.toml` makes it known to turnout as `$name`, also in the files of fleets and stores.

`pip install -e .` fetches setuptools. Without a network connection, in an environment that has setuptools (`pip list`):

    pip install --no-build-isolation --no-deps -e .

Without any installation, turnout finds it in this folder:

    $without
"""

POLICY = '''\
"""The policy $name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from turnout import RoundOffer, RoundReport, Selection, SelectionPolicy, SettingError


class $cls(SelectionPolicy):
    """Selects the clients with the shortest mean time, and new clients first.

    `turnout policies $name` prints this line, and what is said about each setting.

    Args:
        clients: The number of clients.
        cohort_size: The number of clients to select in a round.
        patience: The share of the places that goes to the clients with the fewest turns.
    """

    name = "$name"
    fills_slots = True  # it can also give turns one at a time, without rounds

    def __init__(self, clients: int, *, cohort_size: int = 8, patience: float = 0.25) -> None:
        super().__init__(clients)
        if not 0 <= patience <= 1:
            raise SettingError(f"patience must be a share from 0 to 1, got {patience!r}")
        self.cohort_size = cohort_size
        self.patience = patience
        self._turns = np.zeros(clients, dtype=np.int64)
        self._seconds = np.zeros(clients)

    def ask(self, offer: RoundOffer) -> Selection:
        """Selects the cohort; a policy must not change anything here, and answer the same if it is asked again."""
        self.check_offer(offer)
        rows = np.flatnonzero(offer.available)
        size = min(self.places(offer), len(rows))
        patient = round(self.patience * size)
        by_turns = rows[np.argsort(self._turns[rows], kind="stable")]
        means = self._seconds / np.maximum(self._turns, 1)
        by_time = rows[np.argsort(means[rows], kind="stable")]
        rest = by_time[~np.isin(by_time, by_turns[:patient])]
        return Selection(offer.round, np.sort(np.concatenate([by_turns[:patient], rest[: size - patient]])))

    def tell(self, report: RoundReport) -> None:
        """Learns from the result of a round."""
        self.check_report(report)
        self._turns[report.clients] += 1
        self._seconds[report.clients] += report.exchange_times

    def add(self, count: int) -> None:
        """Appends clients without history."""
        super().add(count)
        self._turns = np.append(self._turns, np.zeros(count, dtype=np.int64))
        self._seconds = np.append(self._seconds, np.zeros(count))

    def forget(self, rows: npt.ArrayLike) -> None:
        """Removes what was learned about these clients."""
        forgotten = np.asarray(rows, dtype=np.int64)
        self._turns[forgotten] = 0
        self._seconds[forgotten] = 0

    def state(self) -> dict[str, Any]:
        """Returns everything that `tell` has changed, as plain arrays and numbers."""
        return {"turns": self._turns.copy(), "seconds": self._seconds.copy()}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restores what `state` returned."""
        self._turns = np.array(state["turns"], dtype=np.int64)
        self._seconds = np.array(state["seconds"], dtype=np.float64)
'''

POLICY_TEST = '''\
"""$name satisfies the contract of policies, and selects whom it should."""

from $module import $cls

from turnout import check_policy, make_policy
from turnout.lab.runs.play import play
from turnout.lab.worlds.paper import PaperWorld


def test_it_satisfies_the_contract() -> None:
    assert check_policy($cls)


def test_it_prefers_fast_clients() -> None:
    records = list(play($cls(40, cohort_size=8, patience=0), PaperWorld(seed=0), 100))
    random = list(play(make_policy("random", 40, cohort_size=8), PaperWorld(seed=0), 100))
    mine, others = (sum(max(record.report.exchange_times) for record in each) for each in (records, random))
    assert mine < others
'''

WORLD = '''\
"""The world $name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from turnout import RoundOffer, RoundReport, Selection


class $cls:
    """Clients with fixed speeds, of which a share is available in each round.

    `turnout worlds $name` prints this line, and what is said about each setting.

    Args:
        seed: The seed of all random numbers.
        clients: The number of clients.
        presence: The share of the rounds in which each client is available.
        slowest: The time of the slowest client, in seconds.
    """

    def __init__(self, seed: int = 0, *, clients: int = 40, presence: float = 0.8, slowest: float = 20.0) -> None:
        self.seed, self._clients, self.presence = seed, clients, presence
        self._speeds = np.random.default_rng([seed, 0]).uniform(1.0, slowest, clients)

    @property
    def clients(self) -> int:
        """The number of clients."""
        return self._clients

    @property
    def availability(self) -> npt.NDArray[np.float64]:
        """The long-run share of rounds in which each client is available."""
        return np.full(self._clients, self.presence)

    def offer(self, round: int) -> RoundOffer:
        """Returns the available clients with their contexts (features), and the true expected times."""
        rng = np.random.default_rng([self.seed, 1, round])  # a function of the seed and the round only
        available = rng.uniform(size=self._clients) < self.presence
        load = rng.uniform(0.5, 1.5, self._clients)
        contexts = np.column_stack([load, np.ones(self._clients), np.zeros(self._clients)])
        return RoundOffer(round, available, contexts, expected_times=self._speeds * load)

    def play(self, offer: RoundOffer, selection: Selection) -> RoundReport:
        """Draws the exchange times of the selected clients."""
        rng = np.random.default_rng([self.seed, 2, offer.round])
        noise = rng.uniform(0.9, 1.1, self._clients)[selection.clients]
        assert offer.expected_times is not None
        times = offer.expected_times[selection.clients] * noise
        contexts = offer.contexts[selection.clients]
        return RoundReport(offer.round, selection.clients, contexts, times, available=offer.available)

    def state(self) -> dict[str, Any]:
        """Returns everything that the next round depends on besides the seed: nothing here."""
        return {}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restores what `state` returned."""
'''

WORLD_TEST = '''\
"""$name satisfies the contract of worlds."""

from $module import $cls

from turnout import FairPace
from turnout.lab.runs.play import play
from turnout.lab.worlds.checks import check_world


def test_it_satisfies_the_contract() -> None:
    assert check_world($cls)


def test_the_settings_count() -> None:
    world = $cls(seed=1, clients=10, presence=1.0, slowest=2.0)
    policy = FairPace(10, cohort_size=3)
    records = list(play(policy, world, 20))
    assert len(records) == 20
    assert max(max(record.report.exchange_times) for record in records) < 2.0 * 1.5 * 1.1
'''

LEARNER = '''\
"""The learner $name: a model of torch, its loss and its data."""

from __future__ import annotations

import numpy as np
from torch import nn

from turnout.lab.training.learners.base import Training
from turnout.lab.training.task import TorchTask

FEATURES, CLASSES = 20, 4


def _rows(seed: int, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns generated measurements and their classes; replace them by your data."""
    centres = np.random.default_rng(0).normal(size=(CLASSES, FEATURES))
    rng = np.random.default_rng(seed)
    labels = rng.integers(CLASSES, size=count)
    return centres[labels] + 0.8 * rng.normal(size=(count, FEATURES)), labels


def $cls(*, hidden: int = 16, learning_rate: float = 0.1) -> TorchTask:
    """Returns a small network for rows of measurements, with the data of all clients.

    Args:
        hidden: The number of hidden units.
        learning_rate: The learning rate of local training.
    """

    def model() -> nn.Module:
        return nn.Sequential(nn.Linear(FEATURES, hidden), nn.ReLU(), nn.Linear(hidden, CLASSES))

    return TorchTask(
        model,
        nn.functional.cross_entropy,
        train_set=_rows(1, 4000),
        test_set=_rows(2, 500),
        training=Training(learning_rate=learning_rate, batch_size=32),
    )
'''

LEARNER_TEST = '''\
"""$name learns."""

import numpy as np
from $module import $cls

from turnout import UniformRandom
from turnout.lab.runs.play import play
from turnout.lab.worlds.paper import PaperWorld


def test_it_learns() -> None:
    world = $cls().world(PaperWorld(seed=0, clients=8), workers=1)
    records = list(play(UniformRandom(8, cohort_size=4), world, 10))
    accuracies = [record.report.metrics["accuracy"] for record in records]
    assert accuracies[-1] > max(accuracies[0], 0.5)


def test_the_same_seed_trains_the_same_model() -> None:
    models = []
    for _ in range(2):
        world = $cls().world(PaperWorld(seed=0, clients=8), seed=3, workers=1)
        list(play(UniformRandom(8, cohort_size=4), world, 2))
        models.append(world.state()["weights"])
    assert np.array_equal(*models)
'''

PACKAGE = '''\
"""A $kind for turnout."""

from $module.$kind import $cls

__all__ = ["$cls"]
'''

#: The module and the test of each kind.
SOURCES: Mapping[str, tuple[str, str]] = {
    "policy": (POLICY, POLICY_TEST),
    "world": (WORLD, WORLD_TEST),
    "learner": (LEARNER, LEARNER_TEST),
}
#: How each kind is used once it is installed, and without installation.
USES: Mapping[str, tuple[str, str]] = {
    "policy": (
        "turnout study leaderboard traces $name",
        "turnout study leaderboard traces $module:$cls",
    ),
    "world": (
        "turnout simulate --world name=$name",
        "turnout simulate --world name=$module:$cls",
    ),
    "learner": (
        "turnout simulate fair-pace random --world name=training --world learner=$name",
        "turnout simulate fair-pace random --world name=training --world learner=$module:$cls",
    ),
}

"""What the checks of policies share: a small fleet that is played, changed values, and requirements."""

from __future__ import annotations

import inspect
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import lru_cache
from typing import Any, TypeAlias, TypeVar

import numpy as np

from turnout.errors import CheckError, PolicyCheckError, SettingError, TurnoutError
from turnout.kernel.arrays import BoolArray, FloatArray, read_only
from turnout.kernel.randomness import round_rng
from turnout.kernel.rounds import RoundOffer, RoundReport, Selection
from turnout.policies.base import SelectionPolicy

TRAINING_SECONDS = (1.0, 2.0, 3.0, 4.0)
COLD_START_SECONDS = 1.0
SIGNAL_TO_NOISE = (1000.0, 100.0, 10.0, 1.0)
MODEL_SIZE = 20.0


@lru_cache(maxsize=512)
def _drawn(seed: int, purpose: str, round: int, clients: int, *ranges: tuple[float, float]) -> tuple[FloatArray, ...]:
    """Draws a number per client from each range; kept, because every check plays the same rounds."""
    rng = round_rng(seed, purpose, round)
    return tuple(read_only(rng.uniform(low, high, clients)) for low, high in ranges)


class SmallFleet:
    """Offers and plays rounds. The same seed gives every policy the same availability, contexts and noise.

    A client needs a cold start unless it trained in the previous round.

    Args:
        seed: The seed of the random generator.
        clients: The number of clients.
        availability: The probability that a client is available in a round.
        deadline: The time, in seconds, after which clients are late; None for no deadline.
        failure_rate: The probability that a client fails half-way.
        losses: Whether clients that arrive report a loss, which is larger for slower classes and falls with time.
        signals: The names of the signals that clients that arrive report; they are similar to losses.
    """

    def __init__(
        self,
        seed: int = 0,
        *,
        clients: int = 40,
        availability: float = 0.8,
        deadline: float | None = None,
        failure_rate: float = 0.0,
        losses: bool = False,
        signals: Sequence[str] = (),
    ) -> None:
        self.seed = seed
        self.clients = clients
        self.availability = availability
        self.deadline = deadline
        self.failure_rate = failure_rate
        self.losses, self.signals = losses, signals
        speed_class = np.arange(clients) * len(TRAINING_SECONDS) // clients
        efficiency = np.log2(1 + np.array(SIGNAL_TO_NOISE))
        columns = np.array(TRAINING_SECONDS)[speed_class], np.full(clients, COLD_START_SECONDS)
        self.theta: FloatArray = np.column_stack([*columns, (1 / efficiency)[speed_class]])
        self._trained = np.zeros(clients, dtype=np.bool_)

    def offer(self, round: int) -> RoundOffer:
        """Returns the offer of a round."""
        free_cpu, bandwidth = _drawn(self.seed, "contexts", round, self.clients, (0.5, 2.0), (2.0, 4.0))
        contexts = np.column_stack([1 / free_cpu, ~self._trained, MODEL_SIZE / bandwidth])
        (chance,) = _drawn(self.seed, "availability", round, self.clients, (0.0, 1.0))
        available = chance < self.availability
        return RoundOffer(round, available, contexts, expected_times=(contexts * self.theta).sum(axis=1))

    def play(self, offer: RoundOffer, selection: Selection) -> RoundReport:
        """Returns the report of a round in which the selected clients trained."""
        chosen = selection.clients
        means = (offer.contexts * self.theta).sum(axis=1)
        (noise,) = _drawn(self.seed, "noise", offer.round, self.clients, (-1.0, 1.0))
        times = (means + means * noise)[chosen]
        late = np.full(len(chosen), False) if self.deadline is None else times > self.deadline
        (chance,) = _drawn(self.seed, "failures", offer.round, self.clients, (0.0, 1.0))
        failed = chance[chosen] < self.failure_rate
        outcomes = np.where(failed, "failed", np.where(late, "late", "arrived"))
        if self.deadline is not None:
            times = np.minimum(times, self.deadline)
        self._trained = np.zeros(self.clients, dtype=np.bool_)
        self._trained[chosen] = True

        def reported(name: str) -> FloatArray:
            return np.where(outcomes == "arrived", self._values(name, offer.round)[chosen], np.nan)

        return RoundReport(
            offer.round,
            chosen,
            offer.contexts[chosen],
            np.where(failed, times / 2, times),
            available=offer.available,
            outcomes=outcomes,
            losses=reported("losses") if self.losses else None,
            signals={name: reported(name) for name in self.signals},
        )

    def _values(self, name: str, round: int) -> FloatArray:
        level = self.theta[:, 0] / (1 + round / 20)
        (factor,) = _drawn(self.seed, name, round, self.clients, (0.5, 1.5))
        return level * factor


Build: TypeAlias = Callable[[], SelectionPolicy]
ROUNDS = 30


def make_builder(build: Callable[..., SelectionPolicy], clients: int) -> Build:
    """Returns a function that builds a new policy."""
    try:
        inspect.signature(build).bind()
    except TypeError:
        return lambda: build(clients)
    return build


T = TypeVar("T")


def run_checks(checks: Sequence[Callable[[T], None]], build: T, noun: str, failure: type[CheckError]) -> list[str]:
    """Runs checks of what `build` builds, and returns their names; raises `failure` for the first that fails."""
    for check in checks:
        name = check.__name__.replace("_", " ")
        try:
            check(build)
        except CheckError as complaint:
            raise failure(f"{name}: {complaint}") from None
        except TurnoutError as error:
            raise failure(f"{name}: the {noun} raised {error!r}") from error
    return [check.__name__.replace("_", " ") for check in checks]


def played(policy: SelectionPolicy, **fleet_settings: Any) -> Iterator[tuple[RoundOffer, Selection]]:
    """Plays rounds on a small fleet, and yields each of them before the policy gets its report."""
    fleet = SmallFleet(clients=policy.clients, signals=policy.signals, **fleet_settings)
    for round_ in range(1, ROUNDS + 1):
        offer = fleet.offer(round_)
        selection = policy.ask(offer)
        yield offer, selection
        policy.tell(fleet.play(offer, selection))


def play_round(policy: SelectionPolicy, fleet: SmallFleet, round_: int) -> RoundReport:
    """Plays a round, and returns its report."""
    offer = fleet.offer(round_)
    report = fleet.play(offer, policy.ask(offer))
    policy.tell(report)
    return report


def require_size(policy: SelectionPolicy, offer: RoundOffer, selection: Selection, places: int) -> None:
    """Requires that a selection has as many clients as there are places, or as are available."""
    expected, selected = min(places, int(offer.available.sum())), len(selection.clients)
    require(
        selected == expected or (selected < expected and not policy.fills_cohort),
        f"round {offer.round}: {selected} clients selected for {places} places, expected {expected}",
    )


def equals_joining_client(policy: SelectionPolicy, key: str, client: int, axis: int) -> bool:
    """Returns whether an entry of the state is that of a client that joins now; False if none can join."""
    before = policy.state()
    try:
        policy.add(1)
    except SettingError:
        return False
    array = np.asarray(policy.state()[key])
    return np.array_equal(np.asarray(before[key]).take(client, axis), array.take(-1, axis))


@contextmanager
def freeze(policy: SelectionPolicy) -> Iterator[SelectionPolicy]:
    """Makes every attribute assignment on the policy, and on policies inside it, an AttributeError."""
    nested = [policy]
    for outer in nested:
        nested.extend(value for value in vars(outer).values() if isinstance(value, SelectionPolicy))
    classes = [type(each) for each in nested]

    def refuse(self: object, name: str, value: object) -> None:  # noqa: ARG001
        raise AttributeError(f"assigned the attribute {name!r}")

    try:
        for each, own in zip(nested, classes, strict=True):
            each.__class__ = type(own.__name__, (own,), {"__setattr__": refuse})
        yield policy
    finally:
        for each, own in zip(nested, classes, strict=True):
            object.__setattr__(each, "__class__", own)


@contextmanager
def untouched_generators() -> Iterator[None]:
    """Requires that global random generators are neither used nor reseeded inside the `with` block."""
    saved_numpy, saved_python = _generators()
    try:
        # An unusual state, which nothing produces by reseeding in the same way as in an earlier check.
        np.random.seed(271828)  # noqa: NPY002
        random.seed(271828)
        before = str(_generators())
        yield
        advice = "use round_rng(seed, purpose, round)"
        require(str(_generators()) == before, f"a global random generator was drawn from, or reseeded: {advice}")
    finally:
        np.random.set_state(saved_numpy)  # noqa: NPY002
        random.setstate(saved_python)


def _generators() -> tuple[dict[str, Any], tuple[Any, ...]]:
    """Returns the states of the global generators; that of NumPy has a position, which every draw changes."""
    return np.random.get_state(legacy=False), random.getstate()  # noqa: NPY002


def eventful_fleet(policy: SelectionPolicy) -> SmallFleet:
    """Returns a fleet in which clients are late, fail, and report losses and the signals of the policy."""
    return SmallFleet(clients=policy.clients, deadline=15.0, failure_rate=0.1, losses=True, signals=policy.signals)


def with_flag(mask: BoolArray, client: int) -> BoolArray:
    """Returns a mask in which one more client is marked."""
    changed = mask.copy()
    changed[client] = True
    return changed


def with_client(selection: Selection, client: int) -> Selection:
    """Returns a selection that contains the client."""
    if client in selection.clients:
        return selection
    return Selection(selection.round, np.sort(np.append(selection.clients, client)))


def other_report(report: RoundReport, client: int) -> RoundReport:
    """Returns the report with another time, loss, context and other signals of one client."""
    own = report.clients == client

    def other(values: FloatArray) -> FloatArray:
        return np.where(own, values * 3.1 + 0.0314159, values)

    return replace(
        report,
        exchange_times=np.where(own, report.exchange_times * (1 + 1e-7), report.exchange_times),  # in the same order
        contexts=np.where(own[:, None], report.contexts * 1.07, report.contexts),
        losses=None if report.losses is None else other(report.losses),
        signals={name: other(values) for name, values in (report.signals or {}).items()},
    )


def numbers_of(report: RoundReport, client: int) -> list[float]:
    """Returns the numbers of one client in a report."""
    own = report.clients == client
    columns = (report.exchange_times, report.losses, *(report.signals or {}).values())
    numbers = [number for column in columns if column is not None for number in column[own].tolist()]
    return [number for number in numbers if np.isfinite(number) and number]


def other_unavailable(offer: RoundOffer) -> RoundOffer:
    """Returns an offer with other values of unavailable clients."""
    absent = ~offer.available
    contexts, times = offer.contexts.copy(), offer.expected_times
    contexts[absent] = contexts[absent][::-1]
    if times is not None:
        times = np.where(absent, times[::-1], times)
    return RoundOffer(offer.round, offer.available, contexts, times)


def reverse_report(report: RoundReport) -> RoundReport:
    """Returns a report with its clients in the opposite order."""
    return replace(
        report,
        clients=report.clients[::-1],
        contexts=report.contexts[::-1],
        exchange_times=report.exchange_times[::-1],
        outcomes=None if report.outcomes is None else report.outcomes[::-1],
        losses=None if report.losses is None else report.losses[::-1],
        signals={name: values[::-1] for name, values in (report.signals or {}).items()},
    )


def require_plain(state: Mapping[str, Any]) -> None:
    """Requires that a state consists of plain arrays and numbers."""
    for key, value in state.items():
        is_plain = (
            value.dtype.kind in "biufU" if isinstance(value, np.ndarray) else isinstance(value, int | float | str)
        )
        require(is_plain, f"state[{key!r}] is a {type(value).__name__}, not a plain array or number")


def require(satisfied: bool, complaint: str) -> None:
    """Raises PolicyCheckError unless the requirement is satisfied."""
    if not satisfied:
        raise PolicyCheckError(complaint)


def require_same_state(before: dict[str, Any], after: dict[str, Any], complaint: str) -> None:
    """Requires that two states are equal."""
    require(before.keys() == after.keys(), f"{complaint}: {sorted(before)} became {sorted(after)}")
    for key in before:
        require(np.array_equal(np.asarray(before[key]), np.asarray(after[key])), f"{complaint}: {key!r} differs")


def require_refusal(act: Callable[[], object], what: str) -> None:
    """Requires that an action raises an error of this package."""
    try:
        act()
    except TurnoutError:
        return
    except Exception as other:
        raise PolicyCheckError(f"{what} raised {other!r}, not a TurnoutError") from other
    raise PolicyCheckError(f"{what} was accepted")

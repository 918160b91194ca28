"""Both kernels select the same cohorts of FairPace to the bit, in small fleets and in those that are filtered."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
import pytest

from policies.examples import same_state
from turnout import FairPace
from turnout.kernel.arrays import BoolArray, FloatArray, IntArray
from turnout.kernel.backend import using_kernel
from turnout.kernel.exchange_time import ExchangeTimeModel
from turnout.kernel.pace.prices import Pace, PacedCohort, paced_cohort_of_contexts, paced_cohort_of_times
from turnout.kernel.pace.usual import UsualContexts
from turnout.policies.check_support import SmallFleet

KERNELS = ("compiled", "numpy")
Result = TypeVar("Result")


def some_of(seeds: int) -> list[Any]:
    """Returns the seeds of a test; `make test` uses half of them."""
    return [pytest.param(seed, marks=pytest.mark.thorough if seed >= seeds // 2 else ()) for seed in range(seeds)]


def by_both_kernels(compute: Callable[[], Result]) -> list[Result]:
    """Returns what each kernel computes."""
    results = []
    for kernel in KERNELS:
        with using_kernel(kernel):
            results.append(compute())
    return results


@pytest.mark.parametrize("amends", [False, True])
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"accrual": "always"},
        {"tolerance": 0.4, "counts": "completed"},
        {"exploration": 0.5},
        {"forgetting": 0.9},
        {"times": "expected"},
        {"value": "loss", "head_start": 1.5},
        {"times": "expected", "value": "loss", "accrual": "always"},
        {"guaranteed_rate": [0.05, 0.1, 0.15, 0.2] * 10, "allow_infeasible": True},
    ],
)
def test_both_kernels_play_the_same_rounds(settings: dict[str, Any], amends: bool) -> None:
    def play() -> tuple[list[Any], dict[str, Any]]:
        cohorts, fleet, policy = (
            [],
            SmallFleet(seed=7, failure_rate=0.1, deadline=12.0, losses=True),
            FairPace(40, **settings),
        )
        for round_ in range(1, 50):
            offer = fleet.offer(round_)
            selection = policy.ask(offer)
            cohorts.append([selection.clients.tolist(), *(value.tobytes() for value in selection.reasons.values())])
            assert policy.cohort_problem(offer).solve().rows.tolist() == selection.clients.tolist()
            policy.tell(fleet.play(offer, selection))
            if amends and round_ % 10 == 0:
                changes = {"guaranteed_rate": f"1/{7 + round_ // 10}", "cohort_size": 6}
                amended = FairPace(40, **{**settings, **changes})
                policy.settle()
                amended.restore(amended.amended_state(policy.state(), keep_times=True))
                policy = amended
        return cohorts, policy.state()

    (cohorts, state), (others, other) = by_both_kernels(play)
    assert cohorts == others
    assert same_state(state, other)


def random_times(rng: np.random.Generator, clients: int) -> FloatArray:
    kinds = (
        rng.random(clients) * 20,
        rng.integers(0, 40, clients).astype(float),
        np.where(rng.random(clients) < 0.9, 0.0, rng.random(clients)),
        np.zeros(clients),
        np.full(clients, 2.5),
        rng.pareto(0.7, clients),
        rng.random(clients) * 1e-300,
        rng.random(clients) * 1e300,
        10.0 ** rng.uniform(-300, 300, clients),
    )
    return np.ascontiguousarray(kinds[rng.integers(len(kinds))])


def random_pace(rng: np.random.Generator, clients: int) -> Pace:
    """Returns accounts in many conditions: cold, equal, everybody urgent, one price above all others."""
    rates: int | IntArray = 3
    rounds: int | IntArray = int(rng.integers(0, 100))
    turns = np.zeros(clients, dtype=np.int32)
    allowed: float | FloatArray = 37.0
    match rng.integers(7):
        case 0:  # nobody ever had a turn
            pass
        case 1:
            rounds = rng.integers(0, 200, clients)
            turns = (rounds * 3 // 20 - rng.integers(-1, 3, clients)).clip(0).astype(np.int32)
        case 2:  # everybody is urgent, many equally so
            rounds = rng.integers(30, 33, clients)
        case 3:  # an outlier that no sample contains: its price is 10¹² times the others'
            rounds, allowed = np.full(clients, 5), np.full(clients, 37.0)
            allowed[clients // 3] = 18.0 + 1e-12
        case 4:  # rates and allowances of their own
            rates, rounds = rng.integers(0, 20, clients), rng.integers(0, 12, clients)
            allowed = rng.uniform(-40, 40, clients)
            turns = rng.integers(0, 9, clients).astype(np.int32)
        case 5:  # a few levels, so that most prices are equal
            rounds = rng.integers(0, 3, clients)
        case _:  # half of the clients are urgent
            rounds = np.where(rng.random(clients) < 0.5, 100, rng.integers(0, 12, clients))
    return extended(rng, Pace(rates, rounds, turns, 20, allowed, 20.0))


def extended(rng: np.random.Generator, pace: Pace) -> Pace:
    """Returns the pace with a head start or values of turns, with both, or with neither."""
    if rng.random() < 0.4:
        pace = pace._replace(head_start=float(rng.choice([1e-12, 0.3, 40.0])))
    if rng.random() < 0.4:
        clients = len(pace.turns)
        losses = (np.ones(clients), rng.random(clients), rng.integers(0, 3, clients) / 1000)[rng.integers(3)]
        pace = pace._replace(losses=losses, loss_price=float(rng.choice([0.0, 1e-9, 0.7, 1e6])))
    if rng.random() < 0.4:
        pace = pace._replace(age=int(rng.choice([1, 30, 10**6])))
    return pace


def assert_same(actual: PacedCohort, expected: PacedCohort) -> None:
    assert actual.cohort.rows.tolist() == expected.cohort.rows.tolist()
    assert actual.cohort.times.tobytes() == expected.cohort.times.tobytes()
    assert actual.urgent.tolist() == expected.urgent.tolist()
    np.testing.assert_array_equal(
        [actual.cohort.threshold, actual.cohort.objective], [expected.cohort.threshold, expected.cohort.objective]
    )


def availability(rng: np.random.Generator, clients: int) -> BoolArray:
    mask: BoolArray = rng.random(clients) < rng.choice([0.0, 0.05, 0.8, 1.0])
    return mask


@pytest.mark.parametrize("seed", some_of(6))
def test_both_kernels_select_the_same_for_known_times(seed: int) -> None:
    rng = np.random.default_rng(seed)
    for _ in range(40):
        clients = int(rng.choice([1, 2, 40, 2048, 2049, 5000, 12_000]))
        times, pace = random_times(rng, clients), random_pace(rng, clients)
        usual = times if rng.random() < 0.3 else random_times(rng, clients)
        size = int(rng.choice([1, 8, 100, max(clients // 2, 1), clients + 3]))
        available = availability(rng, clients)
        results = by_both_kernels(lambda: paced_cohort_of_times(times, usual, pace, size, available))  # noqa: B023
        assert_same(*results)
        assert len(results[0].cohort.rows) == min(size, int(available.sum()))


@pytest.mark.parametrize("seed", some_of(8))
def test_the_number_of_threads_changes_nothing(seed: int) -> None:
    """Each stage of the pass is divided among threads; the candidates are the same, and the cohort is that of NumPy."""
    rng = np.random.default_rng(200 + seed)
    clients = int(rng.integers(131_072, 170_000))
    times, pace, available = random_times(rng, clients), random_pace(rng, clients), availability(rng, clients)
    usual = times if rng.random() < 0.3 else random_times(rng, clients)
    for size in (30, 2000):
        with using_kernel("numpy"):
            expected = paced_cohort_of_times(times, usual, pace, size, available)
        considered = set()
        for threads in (1, 2, 5):
            with using_kernel("compiled", threads):
                actual = paced_cohort_of_times(times, usual, pace, size, available)
            assert_same(actual, expected)
            considered.add(actual.cohort.considered)
        assert len(considered) == 1


@pytest.mark.parametrize("seed", some_of(6))
def test_both_kernels_give_one_place_to_the_same_client(seed: int) -> None:
    """With one place, the compiled kernel compares bounds; where the rounding of prices matters, it must not."""
    rng = np.random.default_rng(100 + seed)
    for _ in range(60):
        clients = int(rng.choice([2049, 4000]))
        times, pace = random_times(rng, clients), random_pace(rng, clients)
        usual = times if rng.random() < 0.5 else random_times(rng, clients)
        match rng.integers(4):
            case 0:  # objectives that differ in the last bits
                times = times * (1 + 2.0 ** -rng.integers(40, 53, clients))
            case 1:  # one price is so large that all others are less than a unit
                usual = usual.copy()
                usual[rng.integers(clients)] = 1e200
            case 2:  # a slow client with such a price
                row = rng.integers(clients)
                times, usual = times.copy(), usual.copy()
                times[row], usual[row] = 1e250, 1e200
        available = availability(rng, clients)
        results = by_both_kernels(lambda: paced_cohort_of_times(times, usual, pace, 1, available))  # noqa: B023
        assert_same(*results)


def common_pace(rng: np.random.Generator, clients: int) -> Pace:
    """Returns accounts with common rates, for which the compiled kernel checks whole blocks of clients at once."""
    rounds = rng.integers(0, 12, clients)
    turns = np.zeros(clients, dtype=np.int32)
    match rng.integers(6):
        case 0:  # all equal
            rounds[:] = 5
        case 1:  # somebody is urgent, as many as not at all or most of them
            rounds[rng.random(clients) < rng.choice([1 / clients, 0.01, 0.9])] = 13
        case 2:  # urgent, and in the last blocks more so
            rounds = np.arange(clients) // 500 + 11
        case 3:  # more units than a number of floating point distinguishes
            rounds[rng.integers(clients)] = 2 ** int(rng.integers(51, 60))
        case 4:  # long ago
            rounds = rounds + 4 * 10**9 * 20
            turns[:] = 3 * 10**9 * 4 // 20
        case _:
            turns = rng.integers(0, 2, clients).astype(np.int32)
    return extended(rng, Pace(3, rounds, turns, 20, float(rng.choice([37.0, 37.3])), 20.0))


def common_times(rng: np.random.Generator, clients: int) -> tuple[FloatArray, ExchangeTimeModel, UsualContexts]:
    """Returns contexts and what was learned, in conditions that are close to those that decide."""
    model = ExchangeTimeModel(clients, features=3, ridge=3.0, prior="fleet", relative_ridge=True)
    usual = UsualContexts(clients, 3)
    contexts = np.array(rng.random((clients, 3)) * 3)
    theta = rng.random((3, clients)) * 2 - 0.2
    counts = rng.integers(0, 4, clients)
    sums = rng.random((3, clients)) * counts
    match rng.integers(8):
        case 0:  # everybody is the same
            contexts[:], theta[:], counts[:], sums[:] = contexts[0], theta[:, :1], 2, sums[:, :1]
        case 1:  # everybody is the same, except one
            contexts[:], theta[:], counts[:], sums[:] = contexts[0], theta[:, :1], 2, sums[:, :1]
            theta[:, rng.integers(clients)] *= rng.choice([0.5, 1 - 1e-12, 1 + 1e-15, 1.5])
        case 2:  # nothing is known
            theta[:], counts[:], sums[:] = 0.0, 0, 0.0
        case 7:  # nothing is known about nearly all clients
            known = rng.random(clients) < 0.001
            theta[:, ~known], counts[~known], sums[:, ~known] = 0.0, 0, 0.0
        case 3:  # times in ascending or descending order: every block has a better client, or none has
            theta[:] = np.sort(theta)[:, :: int(rng.choice([1, -1]))]
        case 4:  # prices that are powers of two, or nearly
            contexts[:], theta[:], counts[:], sums[:] = [1, 0, 0], 2.0, 1, [[1.0], [0.0], [0.0]]
            contexts[:, 0] = 1 + rng.integers(0, 2, clients) * float(rng.choice([0.0, 1e-16, 1e-13, 1e-9]))
        case 5:  # negative estimates, which count as 0
            theta -= 1.5
        case _:
            pass
    model.bank[6:] = theta
    usual.sums[:] = np.concatenate([sums, counts[np.newaxis].astype(float)])
    usual._fleet[:] = usual.sums.sum(axis=1)
    return contexts, model, usual


@pytest.mark.parametrize("seed", some_of(8))
def test_both_kernels_give_one_place_to_the_same_client_by_contexts(seed: int) -> None:
    """The compiled kernel skips blocks of clients that cannot matter; it must not skip any other."""
    rng = np.random.default_rng(seed)
    for _ in range(40):
        clients = int(rng.choice([2049, 2600, 4000]))
        contexts, model, usual = common_times(rng, clients)
        pace, available = common_pace(rng, clients), availability(rng, clients)
        available[rng.integers(clients)] = True
        layout = contexts if rng.random() < 0.3 else np.asfortranarray(contexts)
        results = by_both_kernels(lambda: paced_cohort_of_contexts(model, layout, 0.0, usual, pace, 1, available))  # noqa: B023
        assert_same(*results)


@pytest.mark.parametrize("features", [1, 2, 3, 4, 6])
def test_both_kernels_select_the_same_for_learned_times(features: int) -> None:
    rng = np.random.default_rng(features)
    for _ in range(12):
        clients = int(rng.choice([1, 7, 300, 2049, 6000]))
        model = ExchangeTimeModel(clients, features=features, ridge=3.0, prior="fleet", relative_ridge=True)
        usual = UsualContexts(clients, features)
        for _ in range(int(rng.integers(0, 4))):
            rows = np.flatnonzero(rng.random(clients) < rng.choice([0.02, 0.5]))
            contexts = rng.random((len(rows), features)) * 3 - 0.5
            model.learn(rows, contexts, rng.random(len(rows)) * 20)
            usual._learn(rows, contexts)
        contexts = rng.random((clients, features)) * 3
        if rng.random() < 0.3:
            contexts[:] = contexts[0]
        pace, available = random_pace(rng, clients), availability(rng, clients)
        size = int(rng.choice([1, 8, max(clients // 100, 1), clients]))
        exploration = float(rng.choice([0.0, 0.0, 0.3]))
        results = []
        for layout in (contexts, np.asfortranarray(contexts), np.repeat(contexts, 2, axis=0)[::2]):
            arguments = (model, layout, exploration, usual, pace, size, available)
            results += by_both_kernels(lambda: paced_cohort_of_contexts(*arguments))  # noqa: B023
        for other in results[1:]:
            assert_same(other, results[0])


def brute_sort(times: FloatArray, prices: FloatArray, floor: float, size: int) -> tuple[float, list[int]]:
    """Returns the objective and the rows of the best threshold, by sorting all clients and trying every threshold."""
    best: tuple[float, float, list[int]] = (np.inf, np.inf, [])
    order = np.lexsort((times, -prices))  # stable: then by row
    ordered = times[order]
    for threshold in np.unique(times).tolist():
        rows = order[np.flatnonzero(ordered <= threshold)[:size]]
        if len(rows) < size:
            continue
        objective = max(threshold, floor) - float(prices[rows].sum())
        best = min(best, (objective, threshold, sorted(rows.tolist())))
    return best[0], best[2]


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("levels", [1, 3, 11])
def test_clients_with_equal_prices_in_a_large_fleet_are_selected_by_time_and_row(kernel: str, levels: int) -> None:
    """The filter excludes most clients with a frequent price; a search without it finds the same cohort."""
    rng = np.random.default_rng(levels)
    clients, size = 4000, 20
    for times in (rng.integers(1, 30, clients).astype(float), rng.random(clients) * 9, np.full(clients, 4.0)):
        pace = Pace(3, rng.integers(0, levels, clients), np.zeros(clients, dtype=np.int32), 20, 37.0, 20.0)
        available = np.ones(clients, dtype=np.bool_)
        with using_kernel(kernel):
            cohort = paced_cohort_of_times(times, np.full(clients, 64.0), pace, size, available).cohort
        prices = pace.prices(np.arange(clients), times, np.full(clients, 64.0), 1.0, size)
        objective, rows = brute_sort(times, prices, 0.0, size)
        assert cohort.objective == pytest.approx(objective, rel=1e-12)
        assert cohort.rows.tolist() == rows


def test_the_filter_leaves_few_candidates_of_a_large_fleet() -> None:
    rng = np.random.default_rng(0)
    clients, size = 100_000, 100
    everyone, turns = np.ones(clients, dtype=np.bool_), np.zeros(clients, dtype=np.int32)
    usual = rng.uniform(5, 20, clients)
    varied = Pace(3, rng.integers(0, 11, clients), turns, 20, 37.0, 20.0)
    equal = varied._replace(rounds=np.full(clients, 5))
    with using_kernel("compiled"):
        assert paced_cohort_of_times(usual * rng.uniform(0.5, 2, clients), usual, varied, size, everyone)[
            0
        ].considered < (clients // 10)
        same_price = paced_cohort_of_times(rng.random(clients), np.full(clients, 9.0), equal, size, everyone)
        assert same_price.cohort.considered < 3000
        same_everything = paced_cohort_of_times(np.ones(clients), np.full(clients, 9.0), equal, size, everyone)
        assert same_everything.cohort.considered < 5000
        # A few prices of 0 do not make the scale of the histogram useless.
        some_zero = np.where(rng.random(clients) < 0.1, 0.0, usual)
        times = np.where(some_zero > 0, usual * rng.uniform(0.5, 2, clients), 3.0)
        assert paced_cohort_of_times(times, some_zero, varied, size, everyone).cohort.considered < clients // 10

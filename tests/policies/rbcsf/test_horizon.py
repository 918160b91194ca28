"""A promise kept by a round, groups, and clients that change: RBCS-F beyond the paper."""

from __future__ import annotations

from fractions import Fraction
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from turnout import RBCSF, RoundOffer, RoundReport, check_policy
from turnout.errors import SettingError, StateError
from turnout.kernel.groups import GroupQueues
from turnout.policies.rbcsf.change import ChangeDetector
from turnout.policies.rbcsf.horizon import Horizon
from turnout.simulator import PaperWorld, play

SITES = [("north", "south", None)[n % 3] for n in range(12)]
EXTRAS: dict[str, dict[str, Any]] = {
    "horizon": {"horizon": 60},
    "fleet prior": {"prior": "fleet"},
    "changes": {"change_threshold": 8.0},
    "all": {"horizon": 60, "prior": "fleet", "change_threshold": 8.0, "forgetting": 0.98},
}


@pytest.mark.parametrize("extra", EXTRAS.values(), ids=EXTRAS)
def test_what_every_policy_keeps_is_kept(extra: dict[str, Any]) -> None:
    check_policy(lambda clients: RBCSF(clients, cohort_size=3, guaranteed_rate=0.05, **extra))


@pytest.mark.parametrize("extra", [*EXTRAS.values(), {"groups": SITES, "group_rates": {"north": 1.5, "south": "1/3"}}])
def test_a_resumed_run_is_the_run_it_would_have_been(extra: dict[str, Any]) -> None:
    def build() -> RBCSF:
        return RBCSF(12, cohort_size=4, guaranteed_rate=0.1, **extra)

    whole = build()
    records = list(play(whole, PaperWorld(3, clients=12), 40))
    first, second = build(), build()
    for record in records[:25]:
        first.tell(record.report)
    second.restore(first.state())
    for record in records[25:]:
        second.tell(record.report)
    mine, theirs = whole.state(), second.state()
    assert mine.keys() == theirs.keys()
    assert all(np.array_equal(mine[name], theirs[name]) for name in mine)
    with pytest.raises(StateError):
        build().restore({name: value for name, value in mine.items() if name != sorted(mine)[0]})


def test_by_the_horizon_the_promise_is_kept_where_the_papers_rule_is_far_from_it() -> None:
    """Ten seeds of the paper's world; the paper's rule keeps it only at a small weight, with longer rounds."""
    least: dict[str, float] = {}
    rounds: dict[str, float] = {}
    for name, settings in (
        ("horizon", {"speed_weight": 20.0, "horizon": 200, "prior": "fleet"}),
        ("paper", {"speed_weight": 20.0}),
        ("patient", {"speed_weight": 0.5}),
    ):
        shares, seconds = [], []
        for seed in range(10):
            policy = RBCSF(40, **settings)
            seconds += [record.report.duration for record in play(policy, PaperWorld(seed), 200)]
            shares.append(policy.turns.min() / 200)
        least[name], rounds[name] = float(np.mean(shares)), float(np.mean(seconds))
    assert least["horizon"] > 0.14
    assert least["paper"] < 0.05
    assert least["patient"] > 0.13
    assert rounds["horizon"] < 0.93 * rounds["patient"]


def test_the_weight_grows_to_what_was_asked_for_and_the_price_of_a_turn_stays() -> None:
    horizon = Horizon(3, 100, 20.0)
    weights = [horizon.weight(number) for number in range(1, 101)]
    assert weights[0] == pytest.approx(2.0)
    assert all(later >= earlier for earlier, later in pairwise(weights))
    assert set(weights[30:]) == {20.0}
    horizon.backlog = np.array([4.0, 1.0, 0.0])
    horizon.advance(5, np.array([0]), np.array([0.5, 0.5, 0.5]), 8.0)
    assert horizon.mean_round == 8.0
    now = np.array([3.5, 1.5, 0.5])
    np.testing.assert_allclose(horizon.backlog / horizon.weight(6), now / horizon.weight(5))


def test_who_is_far_behind_weighs_more_and_the_more_so_the_nearer_the_end() -> None:
    horizon = Horizon(2, 100, 20.0)
    for lasted in (4.0, 8.0):
        horizon.advance(40, np.array([0, 1]), np.zeros(2), lasted)
    behind = np.array([1.2, -5.0])
    assert horizon.debts(40, behind).tolist() == [0.0, 0.0]  # 60 rounds are left
    early, late = horizon.debts(90, behind)[0], horizon.debts(100, behind)[0]
    assert early == pytest.approx(6 * 20 * (1.2 - 0.7))
    assert late == pytest.approx(6 * 20 * (1.2 - 0.5))
    assert horizon.debts(200, behind)[0] == late  # the promise stays when its round has passed


def test_earning_by_being_available_counts_for_the_backlog_too() -> None:
    policy = RBCSF(4, cohort_size=1, guaranteed_rate=0.2, horizon=50, accrual="available")
    available = np.array([True, True, False, True])
    offer = RoundOffer(1, available, np.ones((4, 3)))
    chosen = policy.ask(offer).clients
    policy.tell(RoundReport(1, chosen, np.ones((1, 3)), np.array([3.0]), available=available))
    assert policy.horizon is not None
    assert (policy.horizon.backlog > 0).tolist() == [False, True, False, True]


def test_new_clients_join_a_run_with_a_horizon() -> None:
    policy = RBCSF(5, cohort_size=2, guaranteed_rate=0.1, horizon=50, prior="fleet", change_threshold=5.0)
    policy.add(3)
    assert len(policy.ask(RoundOffer(1, np.ones(8, bool), np.ones((8, 3)))).clients) == 2
    assert RBCSF(8, cohort_size=2, guaranteed_rate=0.1, horizon=50, prior="fleet", change_threshold=5.0).state().keys()


# Groups


def literal_groups(cohorts: list[list[int]]) -> tuple[dict[str, Fraction], dict[str, int]]:
    owed = {"north": Fraction(0), "south": Fraction(0)}
    turns = {"north": 0, "south": 0}
    rates = {"north": Fraction(3, 2), "south": Fraction(1, 3)}
    for cohort in cohorts:
        for name in owed:
            count = sum(SITES[row] == name for row in cohort)
            owed[name] = max(owed[name] + rates[name] - count, Fraction(0))
            turns[name] += count
    return owed, turns


def test_a_groups_debt_is_its_rate_less_its_members_turns() -> None:
    rng = np.random.default_rng(1)
    queues = GroupQueues(SITES, {"north": 1.5, "south": "1/3"})
    cohorts = [sorted(rng.choice(12, 3, replace=False).tolist()) for _ in range(50)]
    for cohort in cohorts:
        queues.advance(np.array(cohort))
    owed, turns = literal_groups(cohorts)
    assert queues.owed.tolist() == [float(owed[name]) for name in queues.names]
    assert queues.turns.tolist() == [turns[name] for name in queues.names]
    of_clients = [0.0 if site is None else float(owed[site]) for site in SITES]
    assert queues.of_clients().tolist() == of_clients
    certificate = queues.certificate()
    assert certificate.holds
    assert certificate.promised.tolist() == pytest.approx([75.0, 50 / 3])


def test_a_slow_site_gets_its_turns() -> None:
    """The last ten clients of the paper's world are the slowest: one site of them, promised a quarter of the places."""
    sites = ["slow" if row >= 30 else "others" for row in range(40)]
    with_promise = RBCSF(
        40, guaranteed_rate=0.0, speed_weight=1.0, groups=sites, group_rates={"slow": 2, "others": 0.5}
    )
    without = RBCSF(40, guaranteed_rate=0.0, speed_weight=1.0)
    for policy in (with_promise, without):
        for _ in play(policy, PaperWorld(0), 400):
            pass
    assert without.turns[30:].sum() < 100
    certificate = with_promise.group_certificate()
    assert certificate.holds
    assert certificate.turns[0] >= 800 - certificate.owed[0]
    assert certificate.owed[0] < 80
    assert certificate.turns[0] == with_promise.turns[30:].sum()


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"groups": SITES}, "pass both"),
        ({"group_rates": {"north": 1}}, "pass both"),
        ({"groups": SITES[:3], "group_rates": {"north": 1}}, "each of the 12 clients"),
        ({"groups": SITES, "group_rates": {}}, "a table of groups"),
        ({"groups": SITES, "group_rates": {"west": 1}}, "nobody is in group 'west'"),
        ({"groups": SITES, "group_rates": {"north": "much"}}, "must be a number or a fraction, not 'much'"),
        ({"groups": SITES, "group_rates": {"north": -1}}, "must not be negative"),
        ({"groups": SITES, "group_rates": {"north": 4.5}}, "'north' is promised 4.5 turns a round and can have 4"),
        ({"groups": SITES, "group_rates": {"north": 3, "south": 2}}, "promised 5.4 turns a round together"),
        ({"horizon": 0}, "horizon"),
        ({"change_threshold": -1.0}, "change_threshold"),
        ({"prior": "mean"}, "prior must be 'zero' or 'fleet'"),
    ],
)
def test_odd_settings_are_refused(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(SettingError, match=words):
        RBCSF(12, cohort_size=4, guaranteed_rate=0.1, **settings)


def test_nobody_joins_where_groups_were_given_one_a_client() -> None:
    policy = RBCSF(12, cohort_size=4, guaranteed_rate=0.1, groups=SITES, group_rates={"north": 1})
    with pytest.raises(SettingError, match="build a new policy with all"):
        policy.add(1)
    assert policy.clients == 12
    with pytest.raises(SettingError, match="there is no guarantee for groups"):
        RBCSF(12, cohort_size=4, guaranteed_rate=0.1).group_certificate()


# Changes


def test_a_client_that_changes_is_noticed_and_steady_ones_are_left_alone() -> None:
    rng = np.random.default_rng(0)
    detector, rows = ChangeDetector(3, 8.0), np.arange(3)
    noticed: list[list[bool]] = []
    for number in range(400):
        mean = np.array([10.0, 10.0 if number < 200 else 30.0, 10.0 if number < 200 else 2.0])
        times = mean * rng.uniform(0.5, 1.5, 3)
        noticed.append(detector.changed(rows, np.full(3, 10.0), times).tolist())
    first = [next((n for n in range(400) if noticed[n][client]), None) for client in range(3)]
    assert first[0] is None
    assert first[1] is not None
    assert first[2] is not None
    assert 200 <= first[1] < 210
    assert 200 <= first[2] < 220


def test_a_client_that_changed_is_learned_anew() -> None:
    def error(threshold: float | None) -> float:
        policy = RBCSF(2, cohort_size=2, guaranteed_rate=0.1, change_threshold=threshold)
        rng, contexts = np.random.default_rng(2), np.ones((2, 3))
        for number in range(1, 161):
            times = np.array([10.0, 10.0 if number <= 100 else 40.0]) * rng.uniform(0.8, 1.2, 2)
            policy.tell(RoundReport(number, np.arange(2), contexts, times))
        return float(abs(policy.model.predict(contexts)[1] - 40.0))

    assert error(8.0) < 2.0
    assert error(None) > 15.0

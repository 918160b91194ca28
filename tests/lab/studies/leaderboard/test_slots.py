"""The leaderboard without rounds: plans and measures."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from turnout.errors import SettingError
from turnout.lab import RunStore
from turnout.lab.studies.framework.reproduce import reproduce
from turnout.lab.studies.leaderboard.slots import REFERENCE, SLOT_SUITES, TABLE, SlotBoard

SUITE = SLOT_SUITES["async"]


def test_promises_are_shares_of_an_equal_share_of_the_turns() -> None:
    rates = {contender.label: SUITE.rate(contender) for contender in SUITE.contenders}
    assert rates["FairPace, 50 %"] == Fraction(1, 80)
    assert rates["FairPace, 95 %"] == Fraction(19, 800)
    assert rates[REFERENCE] == Fraction(3, 160)
    # A round has eight turns.
    assert rates["FairPace, 75 %, in rounds"] == Fraction(3, 20)


def test_further_contenders_have_labels_of_their_own() -> None:
    more = SUITE.with_policies([("oort", {}), ("fair-pace", {"guaranteed_rate": "1/100"})])
    oort, fair = more.contenders[len(SUITE.contenders) :]
    assert (oort.label, oort.share, fair.label, fair.share) == ("oort", None, "fair-pace (guaranteed_rate 1/100)", None)
    for repeated in (SUITE.contenders[0].policy, "oort"):
        with pytest.raises(
            SettingError, match=r"the suite async has a contender '.*' already: give it another setting"
        ):
            more.with_policies([(repeated, {})] * 2)


def test_rounds_have_as_many_turns_as_there_are_slots() -> None:
    plans = SUITE.plans(1, 400)
    (rounds,) = plans["FairPace, 75 %, in rounds"]
    (slots,) = plans["FairPace, 75 %"]
    assert (rounds.rounds, rounds.concurrency, rounds.settings["cohort_size"]) == (50, None, 8)
    assert (slots.rounds, slots.concurrency, slots.settings["guaranteed_rate"]) == (400, 8, "3/160")
    (training,) = SLOT_SUITES["async-training"].plans(1, 80)["random, in rounds"]
    assert "updates_per_version" not in training.world_settings
    (mixed,) = SLOT_SUITES["async-training"].plans(1, 80)["random (FedAsync)"]
    assert (mixed.world_settings["updates_per_version"], mixed.world_settings["mixing"]) == (1, 0.6)


def test_contenders_are_measured_against_random_seed_by_seed(tmp_path: Path) -> None:
    with RunStore(tmp_path / "runs.turnout") as store:
        (result,) = reproduce([SlotBoard(SUITE)], store, seeds=2, rounds=64, workers=1)
        table = result.findings.tables[TABLE]
        rows = dict(zip(np.asarray(table["contender"]).tolist(), range(len(SUITE.contenders)), strict=True))
        pace = np.asarray(table["updates_per_second"])
        assert (np.diff(pace) <= 0).all()
        assert np.asarray(table["speedup"])[rows[REFERENCE]] == 1.0
        assert np.asarray(table["speedup_band"])[rows[REFERENCE]] == 0.0
        # Counted from the records of one contender, in another way.
        plans = SUITE.plans(2, 64)["random, in rounds"]
        runs = [store.columns(store.find(plan.key).id) for plan in plans]  # type: ignore[union-attr]
        expected = np.mean([64 / columns.durations.sum() for columns in runs])
        assert pace[rows["random, in rounds"]] == pytest.approx(expected, rel=1e-5)
        assert np.asarray(table["mean_staleness"])[rows["random, in rounds"]] == 0.0
        available = [
            np.array([record.report.available for record in columns.records()]).sum(axis=0) for columns in runs
        ]
        shares = [columns.turns / rounds * 40 / 8 for columns, rounds in zip(runs, available, strict=True)]
        least = np.mean([share.min() for share in shares])
        assert np.asarray(table["least_share"])[rows["random, in rounds"]] == pytest.approx(least, rel=1e-5)
    within = np.asarray(table["worst_shortfall"])[[rows[f"FairPace, {share} %"] for share in (50, 75, 95)]]
    assert (within < 1).all()

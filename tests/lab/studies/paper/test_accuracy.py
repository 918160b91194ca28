"""The accuracy figures: tasks, panels, learning curves, claims."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lab.studies.made_up import columns, reproduce
from turnout.errors import SettingError
from turnout.lab import RoundColumns, RunStore
from turnout.lab.analysis.statistics import LearningCurve
from turnout.lab.studies.catalogue import GROUPS, find_experiments
from turnout.lab.studies.framework.claims import Claim
from turnout.lab.studies.framework.experiment import Findings, plans_of
from turnout.lab.studies.paper.accuracy import (
    GAMMAS,
    TASKS,
    AccuracyExperiment,
    AccuracyRounds,
    AccuracyTime,
    find_tasks,
)
from turnout.lab.studies.paper.comparison import CONTENDERS, RBCSF_LABELS, WEIGHTS
from turnout.lab.studies.paper.fairness_impact import FROM_UNFAIR_TO_FAIR, FairnessImpact
from turnout.lab.studies.paper.learning_curves import final_accuracies, measure_curves, time_to_target
from turnout.lab.studies.paper.panels import Panel, curves_table, summary_table

SEEDS = 4
BOTH = ["fashion-mnist", "cifar-10"]


def learning_curve(
    seed: int, *, end: float = 0.8, slowness: float = 20.0, seconds: float = 10.0, noise: float = 0.0, rounds: int = 200
) -> LearningCurve:
    """Returns an exponential learning curve that differs slightly by seed."""
    when = np.arange(5, rounds + 1, 5)
    accuracies = (end + 0.002 * np.sin(seed)) * (1 - np.exp(-when / slowness))
    accuracies = accuracies + noise * np.where(np.arange(len(when)) % 2, 1, -1) * (1 + 0.1 * seed)
    return LearningCurve(when, when * seconds / 60, accuracies, rounds, rounds * seconds / 60)


def every_panel(
    experiment: AccuracyExperiment, shape: Callable[[Panel, str, int], Mapping[str, Any]]
) -> dict[Panel, dict[str, list[LearningCurve]]]:
    """Returns curves of all panels and contenders; `shape` gives the arguments of `learning_curve`."""
    return {
        panel: {
            label: [learning_curve(seed, **shape(panel, label, seed)) for seed in range(SEEDS)]
            for label in experiment.contenders
        }
        for panel in experiment.panels
    }


def claims_of(kind: type[AccuracyExperiment], datasets: list[str], shape: Any) -> list[Claim]:
    experiment = kind(find_tasks(datasets))
    return experiment.claims(every_panel(experiment, shape))


def verdicts(claims: list[Claim], name: str) -> set[str]:
    return {claim.verdict for claim in claims if claim.name == name}


def as_the_paper_claims(_: Panel, label: str, seed: int) -> dict[str, float]:
    """Random has the highest final accuracy and is slowest, FedCS(3) the reverse; weights are in between, in order."""
    rank = ["random", *RBCSF_LABELS, "FedCS(3)"].index(label)
    seconds = [15, 8, 7, 6, 5.8, 2][rank] + 0.01 * seed
    return {"end": 0.9 - 0.005 * rank, "slowness": 20.0 + 4 * rank, "seconds": seconds}


def the_opposite(panel: Panel, label: str, seed: int) -> dict[str, float]:
    claimed = as_the_paper_claims(panel, label, seed)
    return {"end": 1.7 - claimed["end"], "slowness": 60 - claimed["slowness"], "seconds": 20 - claimed["seconds"]}


def all_equal(*_: object) -> dict[str, float]:
    return {}


ROUNDS_CLAIMS = (
    "random best",
    "smaller weight, higher",
    "FedCS(3) worst",
    "larger weight, more rounds",
    "RBCS-F ahead of FedCS(3) in rounds",
)
ALL_THE_TIME, WORST = "weight 20 beats 50 all the time", "random worst at every target"
TIME_CLAIMS = (
    "FedCS(3) first at low accuracy",
    "RBCS-F ahead of random",
    WORST,
    "weight 20 beats 50 on average",
    ALL_THE_TIME,
)


SHAPES = [(as_the_paper_claims, "holds"), (the_opposite, "does not hold"), (all_equal, "not decided")]


@pytest.mark.parametrize(("shape", "verdict"), SHAPES)
def test_the_verdicts_about_rounds_are_correct(shape: Any, verdict: str) -> None:
    claims = claims_of(AccuracyRounds, BOTH, shape)
    assert len(claims) == 6 * len(ROUNDS_CLAIMS) == len({(claim.name, claim.panel) for claim in claims})
    for name in ROUNDS_CLAIMS:
        assert verdicts(claims, name) == {verdict}, name


@pytest.mark.parametrize(("shape", "verdict"), SHAPES)
def test_the_verdicts_about_time_are_correct(shape: Any, verdict: str) -> None:
    claims = claims_of(AccuracyTime, BOTH, shape)
    assert [claim.panel for claim in claims if claim.name == "weight 20 beats 50 on average"] == [
        f"{dataset}, {split}" for dataset in BOTH for split in ("gamma 10", "iid")
    ]
    assert [claim.panel for claim in claims if claim.name == ALL_THE_TIME] == ["cifar-10, gamma 10", "cifar-10, iid"]
    for name in TIME_CLAIMS:
        assert verdicts(claims, name) == {verdict}, name


def test_a_policy_that_never_reaches_the_target_is_not_ahead_of_random() -> None:
    """Even if its whole run is shorter than the time that random needs."""

    def shape(_: Panel, label: str, seed: int) -> dict[str, float]:
        fails = label == RBCSF_LABELS[-1] and seed == 1
        return {"end": 0.5 if fails else 0.8, "seconds": (100 if label == "random" else 3) + 0.1 * seed}

    claims = {claim.name: claim for claim in claims_of(AccuracyTime, ["digits"], shape) if claim.panel.endswith("iid")}
    ahead = claims["RBCS-F ahead of random"]
    assert ahead.verdict == "not decided"
    assert "; 1 of 4 runs never" in ahead.numbers[RBCSF_LABELS[-1]]
    assert list(ahead.numbers) == ["random", *RBCSF_LABELS]


def test_a_policy_that_never_reaches_the_target_needs_the_most_rounds() -> None:
    def shape(_: Panel, label: str, seed: int) -> dict[str, float]:
        weight = RBCSF_LABELS.index(label) if label in RBCSF_LABELS else 0
        return {"end": 0.5 if weight == 3 else 0.8, "slowness": 20 + 5 * weight + 0.1 * seed}

    for claim in claims_of(AccuracyRounds, ["digits"], shape):
        if claim.name == "larger weight, more rounds":
            assert claim.verdict == "holds"
            assert claim.numbers[RBCSF_LABELS[-1]] == "205 ± 0; 4 of 4 runs never"


def time_claim(name: str, shape: Callable[[Panel, str, int], Mapping[str, Any]]) -> Claim:
    """Returns the claim of this name about CIFAR-10 with iid clients."""
    claims = claims_of(AccuracyTime, ["cifar-10"], shape)
    (claim,) = [claim for claim in claims if (claim.name, claim.panel) == (name, "cifar-10, iid")]
    return claim


@pytest.mark.parametrize("better", [True, False])
def test_weight_20_has_to_beat_50_in_every_part_of_the_time(better: bool) -> None:
    """A curve that is overtaken at the end is better on average, but not all the time."""

    def shape(_: Panel, label: str, seed: int) -> dict[str, float]:
        if label == RBCSF_LABELS[2]:
            return {"end": 0.8, "slowness": 10.0 + 0.01 * seed}
        return {"end": 0.79 if better else 0.82, "slowness": 40.0 + 0.01 * seed}

    assert time_claim("weight 20 beats 50 on average", shape).verdict == "holds"
    claim = time_claim(ALL_THE_TIME, shape)
    assert claim.verdict == ("holds" if better else "does not hold")
    assert list(claim.numbers) == [*(f"part {part} of 10" for part in range(1, 11)), "more than"]
    assert (float(claim.numbers["part 10 of 10"].split()[0]) > 0) == better
    assert float(claim.numbers["part 1 of 10"].split()[0]) > 0


def test_weights_that_are_equal_in_one_part_of_the_time_decide_nothing() -> None:
    def shape(_: Panel, label: str, seed: int) -> dict[str, float]:
        return {"end": 0.8, "slowness": 8.0 if label == RBCSF_LABELS[2] else 9.0, "seconds": 10 + 0.01 * seed}

    assert time_claim("weight 20 beats 50 on average", shape).verdict == "holds"
    experiment = AccuracyTime(find_tasks(["cifar-10"]))
    curves = every_panel(experiment, shape)
    iid = experiment.panels[2]
    for seed in range(SEEDS):  # the last tenth is that of weight 20
        own, other = curves[iid][RBCSF_LABELS[2]][seed], curves[iid][RBCSF_LABELS[3]][seed]
        other.accuracies[-5:] = own.accuracies[-5:]
    (claim,) = [claim for claim in experiment.panel_claims(iid, curves[iid]) if claim.name == ALL_THE_TIME]
    assert claim.verdict == "not decided"


@pytest.mark.parametrize("fast", ["FedCS(3)", RBCSF_LABELS[0], RBCSF_LABELS[3]])
def test_random_has_to_be_later_than_every_policy_at_every_target(fast: str) -> None:
    """One policy that learns quickly at first but slowly in the end is later than random at the highest target only."""

    def shape(_: Panel, label: str, seed: int) -> dict[str, float]:
        if label == "random":
            return {"end": 0.8, "slowness": 20.0, "seconds": 10 + 0.01 * seed}
        if label == fast:
            return {"end": 0.725, "slowness": 12.0, "seconds": 10 + 0.01 * seed}
        return {"end": 0.8, "slowness": 20.0, "seconds": 3 + 0.01 * seed}

    claim = time_claim(WORST, shape)
    assert claim.verdict == "does not hold"
    assert [number.split("(")[-1] for number in claim.numbers.values()] == ["holds)"] * 4 + ["does not hold)"]
    assert [name.split(" (")[0] for name in claim.numbers] == ["at 50%", "at 60%", "at 70%", "at 80%", "at 90%"]
    assert f"next {fast} " in claim.numbers[list(claim.numbers)[-1]]


def test_a_policy_that_never_reaches_a_target_leaves_the_claim_about_random_open() -> None:
    def shape(_: Panel, label: str, seed: int) -> dict[str, float]:
        return {"end": 0.6 if label == "FedCS(3)" else 0.8, "seconds": (30 if label == "random" else 3) + 0.01 * seed}

    claim = time_claim(WORST, shape)
    assert claim.verdict == "not decided"
    assert "runs never" not in claim.numbers["at 50% (0.400)"]


@pytest.mark.parametrize(
    ("slowness", "end", "verdict"),
    [(40.0, 0.8, "holds"), (15.0, 0.8, "does not hold"), (25.0, 0.8, "does not hold"), (20.0, 0.4, "holds")],
)
def test_fedcs_has_to_need_more_rounds_than_every_weight(slowness: float, end: float, verdict: str) -> None:
    """The weights have a slowness of 20 to 29; with an end of 0.4, FedCS(3) never reaches the target."""

    def shape(_: Panel, label: str, __: int) -> dict[str, float]:
        if label == "FedCS(3)":
            return {"end": end, "slowness": slowness}
        return {"slowness": 20.0 + 3 * RBCSF_LABELS.index(label) if label in RBCSF_LABELS else 20.0}

    assert verdicts(claims_of(AccuracyRounds, ["digits"], shape), "RBCS-F ahead of FedCS(3) in rounds") == {verdict}


def test_targets_are_half_and_nine_tenths_of_the_final_accuracy_of_random() -> None:
    experiment = AccuracyTime()
    panel = experiment.panels[0]
    curves = every_panel(experiment, as_the_paper_claims)[panel]
    final = np.mean([curve.final for curve in curves["random"]])
    early, late = experiment.panel_claims(panel, curves)[:2]
    assert f"reaches accuracy {0.5 * final:.3f} before" in early.statement
    assert f"reaches accuracy {0.9 * final:.3f} before" in late.statement
    rounds = AccuracyRounds().panel_claims(panel, curves)
    assert f"accuracy {0.9 * final:.3f} " in rounds[3].statement
    assert f"accuracy {0.9 * final:.3f} " in rounds[4].statement


@pytest.mark.parametrize(
    ("gains", "verdict"),
    [
        ((0.07, 0.07, 0.07), "holds"),
        ((0.07, 0.05, 0.06), "holds"),
        ((0.09, 0.05, 0.06), "does not hold"),  # 0.04 is more than half of 0.067
        ((0.05, 0.06, 0.09), "does not hold"),
        ((0.05, 0.09, 0.06), "does not hold"),
        ((0.06, 0.02, 0.02), "does not hold"),
        ((0.0, 0.0, 0.0), "not decided"),
        ((-0.05, -0.05, -0.05), "does not hold"),
    ],
)
def test_gamma_1_has_little_impact_if_gains_differ_by_less_than_half(gains: tuple[float, ...], verdict: str) -> None:
    def shape(panel: Panel, label: str, seed: int) -> dict[str, float]:
        gain = gains[GAMMAS.index(panel.gamma)] * (1 + 0.01 * seed)
        return {"end": 0.6 + (gain if label == "even" else 0.0), "slowness": 5.0}

    assert verdicts(claims_of(FairnessImpact, ["cifar-10"], shape), "gamma_1 has little impact") == {verdict}


def test_noisy_gains_leave_the_impact_of_gamma_1_open() -> None:
    def shape(panel: Panel, label: str, seed: int) -> dict[str, float]:
        noise = 0.03 * (-1) ** (seed + GAMMAS.index(panel.gamma))
        return {"end": 0.6 + (0.07 + noise if label == "even" else 0.0), "slowness": 5.0}

    claims = claims_of(FairnessImpact, ["cifar-10"], shape)
    (claim,) = [claim for claim in claims if claim.name.startswith("gamma_1 has")]
    assert claim.verdict == "not decided"
    assert list(claim.numbers)[:3] == ["gain, iid", "gain, gamma 10", "gain, gamma 1"]
    assert claim.numbers["less than"].startswith("0.035")


def fairer_is_better(panel: Panel, label: str, seed: int, sign: int = 1) -> dict[str, float]:
    rank, gamma = list(FROM_UNFAIR_TO_FAIR).index(label), GAMMAS.index(panel.gamma)
    gain = sign * (0.05 if panel.dataset == "cifar-10" else 0.02) + 0.0001 * seed
    return {"end": 0.6 + gain * rank, "slowness": 25 - sign * 10 * gamma, "noise": 0.003 * (1.5 - sign * (gamma - 1.5))}


@pytest.mark.parametrize(
    ("shape", "verdict"),
    [(fairer_is_better, "holds"), (partial(fairer_is_better, sign=-1), "does not hold"), (all_equal, "not decided")],
)
def test_the_verdicts_about_fairness_are_correct(shape: Any, verdict: str) -> None:
    claims = claims_of(FairnessImpact, BOTH, shape)
    assert len(claims) == 6 + 2 * 3 + 1 == len({(claim.name, claim.panel) for claim in claims})
    for name in {claim.name for claim in claims}:
        assert verdicts(claims, name) == {verdict}, name
    stronger = claims[-1]
    assert stronger.name == "stronger on CIFAR-10"
    assert list(stronger.numbers) == ["gamma 1", "gamma 10", "iid", "more than"]


def test_a_single_dataset_has_no_claim_about_two_datasets() -> None:
    claims = claims_of(FairnessImpact, ["cifar-10"], fairer_is_better)
    panels = [f"cifar-10, {split}" for split in ("gamma 1", "gamma 10", "iid")]
    assert [claim.panel for claim in claims] == [*panels, *["cifar-10"] * 3]


def test_tables_contain_every_contender_of_every_panel() -> None:
    experiment = AccuracyTime(find_tasks(BOTH))
    curves = every_panel(experiment, as_the_paper_claims)
    table = {name: np.asarray(column) for name, column in curves_table(curves, "minutes").items()}
    assert len(table) == 1 + 2 * 6 * 6
    random, fedcs = (table[f"cifar-10, iid, {label} mean"] for label in ("random", "FedCS(3)"))
    assert np.isnan(random).sum() == 5  # first measured after five rounds of slightly more than 15 seconds
    last = table["minutes"][~np.isnan(fedcs)].max()
    assert last == 200 * 2 // 15 * 0.25
    summary = summary_table(curves, "random")
    for name in ("final_accuracy", "final_accuracy_band", "rounds_to_low_band"):
        values = np.asarray(summary[name])
        assert (values == values.round(6)).all(), "CSV files have six digits"
    assert (np.asarray(summary["final_accuracy_band"]) > 0).all()
    assert np.asarray(summary["contender"]).tolist() == [*CONTENDERS] * 6
    assert np.asarray(summary["gamma"]).tolist()[::6] == ["1", "10", "iid"] * 2
    np.testing.assert_allclose(
        np.asarray(summary["high_target"]), 0.9 * np.repeat(np.asarray(summary["final_accuracy"])[4::6], 6), atol=1e-6
    )


def test_runs_of_different_length_share_a_table() -> None:
    short, long = ([learning_curve(seed, rounds=rounds) for seed in range(2)] for rounds in (50, 100))
    table = curves_table({Panel("a", 1): {"x": short}, Panel("b", "iid"): {"x": long}}, "rounds")
    assert np.asarray(table["rounds"]).tolist() == list(range(5, 101, 5))
    assert np.isnan(np.asarray(table["a, gamma 1, x mean"])).sum() == 10
    assert not np.isnan(np.asarray(table["b, iid, x mean"])).any()


def test_plans_have_the_settings_of_their_task_and_distinct_labels() -> None:
    plans = AccuracyRounds(find_tasks(BOTH)).plans(2)
    assert len(plans) == 2 * 3 * 6
    assert "fashion-mnist, gamma 1, random" in plans
    assert "cifar-10, iid, RBCS-F, weight 20" in plans
    for label, by_seed in plans.items():
        assert [plan.seed for plan in by_seed] == [0, 1]
        assert {(plan.label, plan.world, plan.keep, plan.rounds) for plan in by_seed} == {
            (label, "training", "choices", 500)
        }
        assert by_seed[0].world_settings["dataset"] == label.split(",")[0]
        assert "folder" not in by_seed[0].world_settings
    weights = {
        plan.settings["speed_weight"] for by_seed in plans.values() for plan in by_seed if plan.policy == "rbcsf"
    }
    assert weights == set(WEIGHTS)


def test_even_selection_shares_its_runs_with_random_and_each_experiment_has_a_number_of_seeds() -> None:
    accuracy = find_experiments("accuracy")
    assert len(plans_of(accuracy)) == 3 * (6 * 5 + 3 * 3)
    assert len(plans_of(accuracy, 2)) == 3 * (6 + 3) * 2
    assert {plan.rounds for plan in plans_of(accuracy)} == {TASKS["digits"].rounds}
    assert [(experiment.name, experiment.seeds) for experiment in accuracy] == [
        ("fairness-impact", 3),
        ("accuracy-rounds", 5),
        ("accuracy-time", 5),
    ]
    assert {experiment.seeds for experiment in find_experiments("numerical")} == {20}


def test_datasets_are_selected_by_name_without_repetitions() -> None:
    (experiment,) = find_experiments("accuracy-time", ["cifar-10", "digits", "cifar-10"])
    assert isinstance(experiment, AccuracyTime)
    assert [task.dataset for task in experiment.tasks] == ["cifar-10", "digits"]
    assert GROUPS["accuracy"] == ("fairness-impact", "accuracy-rounds", "accuracy-time")
    with pytest.raises(
        SettingError, match=r"unknown dataset 'cifar10' \(did you mean 'cifar-10'\?\); there are digits"
    ):
        find_experiments("accuracy", ["cifar10"])
    with pytest.raises(SettingError, match="queues trains no model: it cannot be played on digits"):
        find_experiments("queues", ["digits"])
    with pytest.raises(SettingError, match="overview trains no model"):
        find_experiments("numerical", ["digits"])


def test_the_digits_are_learned_and_stored_runs_are_not_played_again(tmp_path: Path) -> None:
    experiments = find_experiments("accuracy-rounds")
    played: list[int] = []
    with RunStore(tmp_path / "runs.turnout") as store:
        results = reproduce(experiments, store, seeds=1, rounds=10, workers=1, watch=played.append)
        assert sum(played) == 3 * 6 * 10
        reproduce(find_experiments("accuracy-time"), store, seeds=1, rounds=10, workers=1, watch=played.append)
        assert sum(played) == 3 * 6 * 10
    assert {claim.verdict for claim in results[0].findings.claims} == {"not decided"}  # a single seed
    means = np.asarray(results[0].findings.tables["accuracy-rounds"]["digits, iid, random mean"])
    assert means[0] < means[-1] > 0.5  # of ten digits
    assert {claim.panel for claim in results[0].findings.claims} == {panel.name for panel in AccuracyRounds().panels}


@pytest.mark.parametrize("kind", [AccuracyRounds, AccuracyTime, FairnessImpact])
def test_figures_have_one_row_per_dataset_and_one_legend(kind: type[AccuracyExperiment]) -> None:
    experiment = kind(find_tasks(BOTH))
    curves = every_panel(experiment, all_equal)
    drawn = experiment.draw(Findings([], {experiment.name: curves_table(curves, experiment.clock)}))
    assert [axes.get_title(loc="left") for axes in drawn.axes] == ["gamma 1", "gamma 10", "iid"] * 2
    assert [text.get_text() for text in drawn.legends[0].get_texts()] == list(experiment.contenders)
    bottom, top = drawn.axes[0].get_ylim()
    assert 0 < bottom < 0.8 < top < 1


def test_runs_too_short_for_a_curve_are_still_drawn() -> None:
    experiment = AccuracyTime()
    curves = every_panel(experiment, lambda *_: {"rounds": 5, "seconds": 1.1})
    drawn = experiment.draw(Findings([], {experiment.name: curves_table(curves, "minutes")}))
    assert len(drawn.axes) == 3


def curve(*accuracies: float, every: int = 5, minutes: float = 1.0) -> LearningCurve:
    """Returns a curve that is measured every `every` rounds, with rounds of `minutes` minutes."""
    rounds = every * np.arange(1, len(accuracies) + 1)
    clock = np.array(rounds * minutes, dtype=np.float64)
    return LearningCurve(rounds, clock, np.array(accuracies), int(rounds[-1]), float(clock[-1]))


def run(times: list[float], accuracies: list[float] | None) -> RoundColumns:
    """Returns a run with one client per round and these exchange times in seconds."""
    metrics = {} if accuracies is None else {"accuracy": np.array(accuracies)}
    return columns([[0]] * len(times), times, 1, metrics=metrics)


def test_a_curve_contains_the_measured_rounds_and_their_times() -> None:
    learned = LearningCurve.of(run([60, 30, 30, 60, 120], [math.nan, 0.2, math.nan, 0.5, math.nan]))
    assert learned.rounds.tolist() == [2, 4]
    assert learned.minutes.tolist() == [1.5, 3.0]
    assert learned.accuracies.tolist() == [0.2, 0.5]
    assert (learned.length, learned.duration) == (5, 5.0)


@pytest.mark.parametrize("accuracies", [None, [math.nan, math.nan]])
def test_a_run_without_any_accuracy_is_rejected(accuracies: list[float] | None) -> None:
    with pytest.raises(SettingError, match="measured no accuracy"):
        LearningCurve.of(run([60, 60], accuracies))


def test_the_final_accuracy_is_the_mean_of_the_last_tenth_or_the_last_measurement() -> None:
    assert curve(*np.linspace(0, 0.7, 18), 0.8, 0.9).final == pytest.approx(0.85)
    learned = LearningCurve(np.array([5, 10]), np.array([5.0, 10.0]), np.array([0.1, 0.3]), 12, 12.0)
    assert learned.final == 0.3
    assert curve(0.1, 0.9, 0.0, 0.5, 0.6, 0.7, 0.8, 0.9).jitter == pytest.approx(0.0)
    assert curve(0, 0, 0, 0, 0.5, 0.7, 0.5, 0.7).jitter == pytest.approx(np.std([0.2, -0.2, 0.2]))
    assert math.isnan(curve(0.5).jitter)


def test_a_target_is_reached_at_the_first_sufficient_measurement_or_never() -> None:
    learned = curve(0.2, 0.6, 0.4, 0.8, minutes=2.0)
    assert learned.rounds_to(0.6) == 10
    assert learned.minutes_to(0.6) == 20
    assert learned.rounds_to(0.61) == 20
    runs = [curve(0.2, 0.6), curve(0.2, 0.3)]
    group = time_to_target("a", runs, 0.5, "rounds")
    assert group.values.tolist() == [10, 15]
    assert group.summary.endswith("; 1 of 2 runs never")
    assert "never" not in time_to_target("a", [curve(0.2, 0.6)], 0.5, "minutes").summary
    assert final_accuracies("a", runs).values.tolist() == [0.6, 0.3]
    assert measure_curves("a", runs, lambda run: run.duration).values.tolist() == [10, 10]
    assert not learned.reaches(0.81)
    assert learned.rounds_to(0.81) == 25
    assert learned.minutes_to(0.81) == 40


def test_averages_over_time_extend_each_measurement_to_the_next() -> None:
    learned = curve(0.2, 0.6, 0.4)  # at 5, 10 and 15 minutes
    assert learned.mean_until(5) == 0
    assert learned.mean_until(10) == pytest.approx(0.1)
    assert learned.mean_until(12) == pytest.approx((5 * 0.2 + 2 * 0.6) / 12)
    assert learned.mean_until(15) == pytest.approx((5 * 0.2 + 5 * 0.6) / 15)
    assert learned.mean_between(0, 10) == pytest.approx(learned.mean_until(10))
    assert learned.mean_between(0, 5) == 0
    assert learned.mean_between(8, 12) == pytest.approx((2 * 0.2 + 2 * 0.6) / 4)
    assert learned.mean_between(10, 15) == pytest.approx(0.6)


def test_a_curve_is_nan_before_its_first_measurement_and_after_its_end() -> None:
    learned = curve(0.2, 0.6, minutes=0.5)
    np.testing.assert_array_equal(
        learned.at(np.array([2.0, 2.5, 4.9, 5.0, 5.1]), "minutes"), [np.nan, 0.2, 0.2, 0.6, np.nan]
    )
    np.testing.assert_array_equal(learned.at(np.array([4.0, 5.0, 10.0, 15.0]), "rounds"), [np.nan, 0.2, 0.6, np.nan])

"""The tables of docs/results/README.md show the stored verdicts and numbers."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterable, Sequence
from decimal import Decimal
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from narrowing import known
from turnout.lab.studies.catalogue import GROUPS

ROOT = Path(__file__).parents[3]
RESULTS = ROOT / "docs" / "results"
#: A number with thousands separators and an optional sign, but not a part of a name such as `horizon=500`.
NUMBER = re.compile(r"(?<![\w=.])[-−]?\d[\d,]*(?:\.\d+)?(?:e[-+]\d+)?")


@cache
def claims_in(folder: str, experiments: Sequence[str] = ()) -> list[dict[str, Any]]:
    claims: list[dict[str, Any]] = json.loads((RESULTS / folder / "claims.json").read_text())
    return [claim for claim in claims if not experiments or claim["experiment"] in experiments]


def stored_claims(experiment: str) -> list[dict[str, Any]]:
    return [claim for claim in claims_in("numerical") if claim["experiment"] == experiment]


def rows_of(experiment: str) -> list[list[str]]:
    """Returns the cells (claim, verdict, numbers) of the rows of this experiment."""
    rows = []
    for line in (RESULTS / "README.md").read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("|") and cells[-1] == f"`{experiment}`":
            rows.append(cells[:-1])
    return rows


def numbers_in(text: str) -> list[Decimal]:
    return [Decimal(number.replace(",", "").replace("−", "-")) for number in NUMBER.findall(text)]


def is_shown(number: Decimal, printed: list[Decimal], *, percent: bool) -> bool:
    """Returns whether a number is a printed one, rounded to its own digits; shares may be shown as percentages."""
    unit = Decimal(1).scaleb(int(number.as_tuple().exponent))
    return any(abs(value * (100 if percent else 1) - number) <= unit / 2 for value in printed)


def numbers_of(claims: Iterable[dict[str, Any]]) -> list[Decimal]:
    """Returns all numbers that a command printed about these claims."""
    return [
        number
        for claim in claims
        for text in (claim["statement"], *claim["numbers"], *claim["numbers"].values())
        for number in numbers_in(text)
    ]


def unknown_numbers(shown: str, claims: Iterable[dict[str, Any]]) -> list[Decimal]:
    """Returns the numbers of a cell that were not printed about these claims."""
    printed, numbers = numbers_of(claims), numbers_in(shown)
    assert numbers, shown
    return [
        number
        for number in numbers
        if not is_shown(number, printed, percent=False)
        and not ("%" in shown and is_shown(number, printed, percent=True))
    ]


@pytest.mark.parametrize("experiment", [name for name in GROUPS["numerical"] if name not in ("overview",)])
def test_every_claim_has_a_row_with_its_verdict_and_the_numbers_of_its_command(experiment: str) -> None:
    rows, claims = rows_of(experiment), stored_claims(experiment)
    assert [row[1].strip("*") for row in rows] == [claim["verdict"] for claim in claims]
    for (claim_cell, _, numbers), claim in zip(rows, claims, strict=True):
        assert unknown_numbers(numbers, [claim]) == [], claim_cell


def test_a_wrong_number_would_be_noticed() -> None:
    printed = numbers_in("RBCS-F, weight 50: 0.1061 ± 0.021, after 1,293 rounds, 3e-05")
    assert printed == [Decimal(text) for text in ("50", "0.1061", "0.021", "1293", "0.00003")]
    assert is_shown(Decimal("0.11"), printed, percent=False)
    assert is_shown(Decimal("11"), printed, percent=True)
    assert not is_shown(Decimal("0.12"), printed, percent=False)
    assert not is_shown(Decimal("12"), printed, percent=True)


# The accuracy study

MARKS = {"holds": "✓", "not decided": "?", "does not hold": "✗"}
DATASETS = ("fashion-mnist", "cifar-10")
WEIGHTS = [f"RBCS-F, weight {weight}" for weight in (1, 5, 20, 50)]
#: Digits that are part of a name, not measurements.
NAMES = re.compile(
    r"CIFAR-10|FedCS\(3\)|gamma_1 = \d+(?:, \d+)*|weights? \d+(?:, \d+)*|parts? \d+(?: to \d+)?|"
    r"\d+ % of|at \d+ %|over 0\.1|iid, 10, 1"
)
#: The stored claims of each row, by the beginning of its first cell; a row with two claims has the marks of both.
ACCURACY_CLAIMS = {
    "more even selection": ["fairer ends higher"],
    "… and the gain is larger": ["stronger on CIFAR-10"],
    "gamma_1 has little impact": ["gamma_1 has little impact"],
    "a smaller gamma_1": ["smaller gamma_1, more jitter"],
    "… and slower progress": ["smaller gamma_1, slower"],
    "random selection has the highest": ["random best"],
    "a smaller weight": ["smaller weight, higher"],
    "FedCS(3) has the lowest": ["FedCS(3) worst"],
    "a larger weight needs": ["larger weight, more rounds"],
    "RBCS-F needs fewer rounds": ["RBCS-F ahead of FedCS(3) in rounds"],
    "FedCS(3) is first": ["FedCS(3) first at low accuracy"],
    "RBCS-F is ahead": ["RBCS-F ahead of random"],
    "random selection is last": ["random worst at every target"],
    "weight 20 is better": ["weight 20 beats 50 on average"],
    "… and in each of ten": ["weight 20 beats 50 all the time"],
}
PACE_CLAIMS = {
    "FairPace 0.05 takes at most 0.9": ["in 0.9 of Oort's time"],
    "… less than RBCS-F at weight 20": ["ahead of RBCS-F 20"],
    "… less than Oort with": ["ahead of Oort with a guarantee"],
    "… less than without value": ["ahead of FairPace without value"],
    "FairPace 0.15 takes less than random": ["FairPace 0.15 ahead of random"],
    "… is at most 0.01 less accurate": ["as accurate as random"],
    "… is more accurate than RBCS-F": ["more accurate than RBCS-F 20"],
    "… has shorter rounds": ["shorter than random"],
    "with 0.05 and 0.15, nobody": ["promise kept"],
}
PRICE_CLAIMS = {
    "a larger rate takes longer": ["a larger rate takes longer"],
    "an equal share (0.2) takes less": ["an equal share ahead of random"],
    "… is at most 0.01 less accurate": ["as accurate as random"],
    "… is more accurate than no promise": ["an equal share more accurate than no promise"],
    "at all five rates, nobody": ["promise kept"],
}
PACE = {dataset: f"fair-pace/{dataset}" for dataset in DATASETS}
#: The heading, the experiments, the claims and the folders of each study that trains.
STUDIES = {
    "accuracy": ("Does fairness improve the final model?", GROUPS["accuracy"], ACCURACY_CLAIMS, DATASETS),
    "time": ("Time to accuracy", ("time-to-accuracy",), PACE_CLAIMS, (*PACE.values(),)),
    "price": ("Time to accuracy", ("price-of-fairness",), PRICE_CLAIMS, (*PACE.values(),)),
}
#: The panels of the table of minutes, in the order of its columns.
PANELS = ("0.1", "0.3", "1", "iid", "0.1, speed by class")


@cache
def table(file: str) -> list[dict[str, str]]:
    with (RESULTS / file).open() as lines:
        return list(csv.DictReader(lines))


def value(file: str, gamma: str, contender: str, column: str) -> float:
    """Returns one value of a table of contenders."""
    (row,) = [row for row in table(file) if (row["gamma"], row["contender"]) == (gamma, contender)]
    return float(row[column])


def section(heading: str) -> str:
    """Returns the text below a heading, until the next one."""
    text = (RESULTS / "README.md").read_text()
    return text.partition(f"## {heading}\n")[2].partition("\n## ")[0]


def study_rows(heading: str, experiments: Sequence[str]) -> list[list[str]]:
    """Returns the cells (claim, one cell for each dataset, numbers) of the rows of a study."""
    lines = [line for line in section(heading).splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in line.removeprefix("|").removesuffix("|").split("|")] for line in lines]
    return [row[:-1] for row in cells if row[-1].strip("`") in experiments]


def marks_of(folder: str, names: Sequence[str], experiments: tuple[str, ...]) -> str:
    """Returns the verdicts of these claims, one for each panel, which are the same for all names."""
    claims = claims_in(folder, experiments)
    (marks,) = {" ".join(MARKS[claim["verdict"]] for claim in claims if claim["name"] == name) for name in names}
    return marks


def wrong_marks(study: str, rows: Sequence[Sequence[str]]) -> list[str]:
    """Returns the claims whose cells do not show the stored verdicts; every row has to be expected, in this order."""
    _, experiments, claims, folders = STUDIES[study]
    assert len(rows) == len(claims)
    wrong = []
    for (claim, *marks, _), (start, names) in zip(rows, claims.items(), strict=True):
        assert claim.startswith(start)
        if names == ["stronger on CIFAR-10"]:  # it compares both datasets and is stored with them
            expected = ["", marks_of("fairness-impact", names, experiments)]
        else:
            expected = [marks_of(folder, names, experiments) for folder in folders]
        wrong += [] if marks == expected else [start]
    return wrong


def measured(dataset: str, contender: str, column: str, gamma: str = "10") -> float:
    return value(f"{dataset}/accuracy-summary.csv", gamma, contender, column)


@pytest.mark.parametrize("study", STUDIES)
def test_the_marks_and_numbers_of_a_study_that_trains_are_the_stored_ones(study: str) -> None:
    heading, experiments, claims, folders = STUDIES[study]
    rows = study_rows(heading, experiments)
    assert wrong_marks(study, rows) == []
    read = (*folders, *(["fairness-impact"] * (study == "accuracy")))
    stored = [claim for folder in read for claim in claims_in(folder, experiments)]
    assert {claim["name"] for claim in stored} == {name for names in claims.values() for name in names}, heading
    for (cell, *_, numbers), names in zip(rows, claims.values(), strict=True):
        assert unknown_numbers(NAMES.sub("", numbers), [claim for claim in stored if claim["name"] in names]) == [], (
            cell
        )


def test_wrong_marks_would_be_noticed() -> None:
    first, *others = study_rows(STUDIES["accuracy"][0], GROUPS["accuracy"])
    assert wrong_marks("accuracy", [[first[0], "? ? ?", "? ? ?", first[3]], *others]) == ["more even selection"]


def timed(dataset: str, gamma: str, contender: str, column: str) -> float:
    return value(f"{PACE[dataset]}/time-to-accuracy.csv", gamma, contender, column)


def priced(dataset: str, gamma: str, rate: float, column: str) -> float:
    return value(f"{PACE[dataset]}/price-of-fairness.csv", gamma, f"FairPace {rate:g}, value", column)


def table_rows(text: str, first: str) -> list[list[str]]:
    """Returns the rows of the table whose first heading is this."""
    lines = text[text.index(f"| {first} |") :].partition("\n\n")[0].splitlines()[2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_the_table_of_minutes_shows_the_stored_times_and_the_largest_shortfalls() -> None:
    rows = table_rows(section("Time to accuracy"), "minutes to 95 %")
    assert [row[0] for row in rows if "FairPace" in row[0]] == [*PACE_CONTENDERS]
    panels = [(dataset, gamma) for dataset in reversed(DATASETS) for gamma in PANELS]
    for label, *cells, shortfall in rows:
        assert len(cells) == len(panels)
        for cell, (dataset, gamma) in zip(cells, panels, strict=True):
            least = "≥ " * bool(timed(dataset, gamma, label, "never_at_95"))
            assert cell == f"{least}{timed(dataset, gamma, label, 'minutes_to_95'):.1f}", (label, dataset, gamma)
        assert float(shortfall) == max(timed(*panel, label, "largest_shortfall") for panel in panels), label


PACE_CONTENDERS = ("FairPace 0.05", "FairPace 0.15", "FairPace 0.05, value", "FairPace 0.15, value")


def test_the_comparison_with_oort_states_each_panel_in_which_fair_pace_needs_more() -> None:
    text = " ".join(section("Time to accuracy").split())
    minutes = {
        label: {panel: timed(*panel, label, "minutes_to_95") for panel in product(DATASETS, PANELS)}
        for label in ("FairPace 0.05, value", "Oort")
    }
    share = {panel: own / minutes["Oort"][panel] for panel, own in minutes["FairPace 0.05, value"].items()}
    slower = {panel for panel, ratio in share.items() if ratio > 0.9}
    uneven, coarse, by_class = ("cifar-10", "0.1"), ("fashion-mnist", "0.3"), ("fashion-mnist", PANELS[-1])
    assert slower == {uneven, coarse, by_class}
    assert "at most 0.9 of Oort's time in seven of ten panels" in text
    assert f"on CIFAR-10 with gamma 0.1 ({share[uneven]:.2f} times)" in text
    assert f"on Fashion-MNIST with gamma 0.3 ({share[coarse]:.2f}) and by class ({share[by_class]:.2f})" in text
    worst = max(timed(*panel, "Oort", "largest_shortfall") for panel in share)
    assert f"up to {worst:.0f} turns behind" in text
    times = {
        panel: [timed(*panel, label, "minutes_to_95") for label in ("Oort + guarantee", "Oort")]
        for panel in (uneven, by_class)
    }
    assert "on CIFAR-10, where it needs {:.1f} instead of {:.1f} minutes".format(*times[uneven]) in text
    assert "by class on Fashion-MNIST ({:.1f} instead of {:.1f})".format(*times[by_class]) in text
    free = priced(*by_class, 0, "minutes_to_95") / times[by_class][1]
    assert 0.9 < free < 1
    assert f"FairPace needs {free:.2f} of Oort's time even without a promise" in text
    marks = [marks_of(folder, ["in 0.9 of Oort's time"], ("time-to-accuracy",)) for folder in PACE.values()]
    assert marks == ["✓ ? ? ? ?", "? ? ? ✓ ?"]
    assert "with confidence in two of them (CIFAR-10, iid; Fashion-MNIST, gamma 0.1)" in text
    early = "({:.1f} minutes instead of {:.1f})".format(times[by_class][1], minutes["FairPace 0.05, value"][by_class])
    assert f"Oort is as early on Fashion-MNIST {early}" in page("docs/which-policy.md")
    faster = timed("cifar-10", PANELS[-1], "FairPace 0.05, value", "minutes_to_95")
    assert faster < 0.9 * timed("cifar-10", PANELS[-1], "Oort", "minutes_to_95")
    assert "On Fashion-MNIST, Oort is as early if clients of one class have similar speeds" in page("README.md")


def test_the_results_say_where_fair_pace_is_less_accurate_and_where_a_promise_was_not_kept() -> None:
    text = " ".join(section("Time to accuracy").split())
    high = accuracy_differences("time-to-accuracy", "FairPace 0.15, value − random")
    assert [panel for panel, (mean, band) in high.items() if mean + band < 0] == [f"cifar-10, gamma {PANELS[-1]}"]
    mean, band = high[f"cifar-10, gamma {PANELS[-1]}"]
    assert f"By class on CIFAR-10, FairPace 0.15 ends {-mean:.3f} ± {band:g} below random" in text
    equal = accuracy_differences("price-of-fairness", "FairPace 0.2, value − random")
    assert len(equal) == 6
    assert all(mean + band >= 0 for mean, band in equal.values())
    assert "below random's with confidence in none of the six panels of the price of fairness" in text
    beyond = [
        (dataset, row["gamma"], row["contender"], row["largest_shortfall"])
        for dataset, folder in PACE.items()
        for row in table(f"{folder}/price-of-fairness.csv")
        if float(row["largest_shortfall"]) > 2
    ]
    panels = [*product(["fashion-mnist"], ("0.1", "1", PANELS[-1])), ("cifar-10", PANELS[-1])]
    assert beyond == [(*panel, "FairPace 0.2, value", "2.2") for panel in panels]
    assert "in all three panels of Fashion-MNIST, and by class on CIFAR-10, somebody was 2.2 turns behind" in text
    assert "in four of the six rows somebody was 2.2 turns behind" in page("docs/tuning.md")
    own = page("docs/fair-pace.md")
    assert "worse in four of six panels: at an equal share of all rounds" in own
    assert "clients were up to 2.2 turns behind" in own


def accuracy_differences(experiment: str, label: str) -> dict[str, tuple[float, float]]:
    """Returns the mean and the interval of a difference from the accuracy of random selection, for each panel."""
    differences = {}
    for folder in PACE.values():
        for claim in claims_in(folder, (experiment,)):
            if claim["name"] == "as accurate as random":
                match = known(re.match(r"(-?\S+) ± (\S+)$", claim["numbers"][label]))
                differences[claim["panel"]] = float(match[1]), float(match[2])
    return differences


def page(name: str) -> str:
    """Returns a page of the documentation, with single spaces instead of line breaks."""
    return " ".join((ROOT / name).read_text().split())


def test_the_readme_shows_the_stored_times_to_accuracy() -> None:
    labels = {
        "**FairPace**, rate 0.05, value": "FairPace 0.05, value",
        "FairPace, rate 0.15, value": "FairPace 0.15, value",
        "RBCS-F, speed weight 20": "RBCS-F, weight 20",
        "random selection": "random",
    }
    columns = {"minutes_to_80": 1, "minutes_to_90": 1, "minutes_to_95": 1, "final_accuracy": 3, "largest_shortfall": 2}
    text = (ROOT / "README.md").read_text()
    rows = text[text.index("| min to 80 %") :].partition("\n\n")[0].splitlines()[2:]
    assert len(rows) == len(labels) + 1
    for label, *cells in ([cell.strip() for cell in row.strip("|").split("|")] for row in rows):
        values = [timed("cifar-10", "1", labels.get(label, label), column) for column in columns]
        shown = [f"{number:.{digits}f}" for number, digits in zip(values, columns.values(), strict=True)]
        assert [cell.removesuffix(" turns") for cell in cells] == shown, label


def test_the_price_of_fairness_is_that_of_the_stored_runs() -> None:
    rows = table_rows((ROOT / "docs" / "tuning.md").read_text(), "minutes to 95 % | 0 | 0.02 | 0.05 | 0.1 | 0.15 | 0.2")
    names = {"CIFAR-10": "cifar-10", "Fashion-MNIST": "fashion-mnist"}
    rates = (0, 0.02, 0.05, 0.1, 0.15, 0.2)
    slower, faster, behind = [], [], []
    for label, *cells in rows:
        dataset, panel = label.split(", ")
        panel = "0.1, speed by class" if panel == "by class" else panel.removeprefix("gamma ")
        key = (names[dataset], panel)
        minutes = [priced(*key, rate, "minutes_to_95") for rate in rates]
        random = timed(*key, "random", "minutes_to_95")
        assert cells == [f"{number:.1f}" for number in (*minutes, random)], label
        slower.append(minutes[-1] / minutes[0])
        faster.append(minutes[-1] / random)
        bands = [priced(*key, rate, "minutes_to_95_band") for rate in (0, 0.05)]
        assert abs(minutes[2] - minutes[0]) <= sum(bands), label
        none, equal = (priced(*key, rate, "final_accuracy") for rate in (0, 0.2))
        assert none < equal, label
        assert abs(equal - timed(*key, "random", "final_accuracy")) <= 0.01, label
        behind.append(priced(*key, 0.05, "largest_shortfall"))
    assert len(rows) == 6
    text = page("docs/tuning.md")
    assert f"nobody was more than {max(behind):g} turns behind" in text
    assert f"takes {min(slower):.1f} to {max(slower):.1f} times as long as no promise" in text
    assert f"in {min(faster):.2f} to {max(faster):.2f} of its time" in text
    ends = [priced("cifar-10", "1", rate, "final_accuracy") for rate in (0.2, 0)]
    assert "{:.3f} instead of {:.3f} on CIFAR-10 with gamma 1".format(*ends) in text


def test_what_the_value_of_a_turn_brings_and_costs_is_what_was_measured() -> None:
    text, pages = page("docs/fair-pace.md"), page("docs/which-policy.md")
    marks = "".join(
        marks_of(folder, ["ahead of FairPace without value"], ("time-to-accuracy",)) for folder in PACE.values()
    )
    assert (marks.count("✓"), marks.count("✗")) == (7, 0)
    assert "in seven of ten panels with confidence, and later in none" in text
    own, plain = (
        {column: timed("cifar-10", "1", label, column) for column in ("minutes_to_95", "final_accuracy", "minutes")}
        for label in ("FairPace 0.05, value", "FairPace 0.05")
    )
    assert f"after {own['minutes_to_95']:.1f} minutes instead of {plain['minutes_to_95']:.1f}" in text
    assert f"of {own['final_accuracy']:.3f} instead of {plain['final_accuracy']:.3f}" in text
    assert f"take {own['minutes']:.0f} instead of {plain['minutes']:.0f} minutes at 0.05" in text
    high = [timed("cifar-10", "1", label, "minutes") for label in ("FairPace 0.15, value", "FairPace 0.15")]
    assert "{:.0f} instead of {:.0f} at 0.15".format(*high) in text
    apart = {}
    for dataset, gamma in product(DATASETS, PANELS):
        for column in ("minutes_to_80", "minutes_to_90", "minutes_to_95", "final_accuracy"):
            labels = ("FairPace 0.15, value", "FairPace 0.15")
            means, bands = ([timed(dataset, gamma, label, column + end) for label in labels] for end in ("", "_band"))
            if abs(means[0] - means[1]) > sum(bands):
                apart[dataset, gamma, column] = means
        early = [timed(dataset, gamma, label, "minutes_to_80") for label in ("RBCS-F, weight 20", "FairPace 0.15")]
        assert early[0] < early[1], (dataset, gamma)
    exception = ("cifar-10", PANELS[-1], "minutes_to_80")
    assert [*apart] == [exception]
    brought = "(80 % of random's accuracy after {:.1f} minutes instead of {:.1f})".format(*apart[exception])
    assert f"overlap, except by class on CIFAR-10 {brought}" in text
    slots = {row["contender"]: float(row["minutes_to_target"]) for row in table("async/cifar-10/slots.csv")}
    shares = [(slots[f"FairPace, {share} %, value"], slots[f"FairPace, {share} %"]) for share in (50, 75, 95)]
    assert all(valued < without for valued, without in shares)
    assert "{:.1f} minutes instead of {:.1f} at half of an equal share".format(*shares[0]) in text
    late = [timed("cifar-10", "1", label, "minutes_to_95") for label in ("FairPace 0.05, value", "Oort", "random")]
    worst = timed("cifar-10", "1", "FairPace 0.05, value", "largest_shortfall")
    shown = "after {:.1f} min, Oort {:.1f}, random {:.1f}".format(*late)
    assert f"{shown}; nobody more than {worst:g} turns behind" in pages


def test_numbers_in_the_text_of_the_accuracy_study_are_the_stored_ones() -> None:
    text = " ".join(section("Does fairness improve the final model?").split())
    name, weight = "RBCS-F ahead of FedCS(3) in rounds", "RBCS-F, weight 50"
    (claim,) = [claim for claim in claims_in("cifar-10") if claim["name"] == name and claim["verdict"] != "holds"]
    assert claim["panel"] == "cifar-10, gamma 1"
    assert "; 1 of 5 runs never" in claim["numbers"]["FedCS(3)"]
    match = known(re.search(r"difference (\S+) ± (\S+?)[;)]", claim["numbers"][weight]))
    assert f"it needs {float(match[1]):.0f} ± {float(match[2]):.0f} rounds fewer" in text
    file, weighted = "{}/fairness-impact-summary.csv", ("concentration 10", "even")
    even = {
        (dataset, gamma): [value(file.format(dataset), gamma, label, "final_accuracy") for label in weighted]
        for dataset, gamma in product(DATASETS, ("1", "10", "iid"))
    }
    assert all(abs(first - second) < 0.002 for first, second in even.values())
    assert "({:.3f} and {:.3f})".format(*even["cifar-10", "1"]) in text
    contenders = product((*WEIGHTS, "FedCS(3)"), ("1", "10", "iid"))
    rounds = [measured("fashion-mnist", label, "rounds_to_high", gamma) for label, gamma in contenders]
    assert f"need {min(rounds):.0f} to {max(rounds):.0f} rounds" in text
    minutes = [measured("cifar-10", contender, "minutes") for contender in (WEIGHTS[0], "random")]
    assert "({:.0f} of {:.0f} minutes)".format(*minutes) in text


def test_the_table_of_local_training_shows_the_stored_settings() -> None:
    labels = {"digits": "digits", "Fashion-MNIST": "fashion-mnist", "CIFAR-10": "cifar-10"}
    lines = re.findall(
        r"^\| (digits|Fashion-MNIST|CIFAR-10) \| (.*) \|$", section("How the models were trained"), re.MULTILINE
    )
    assert [label for label, _ in lines] == list(labels)
    for label, cells in lines:
        stored = {row["setting"]: row["value"] for row in table(f"{labels[label]}/accuracy-settings.csv")}
        _, items, epochs, batch, rate, decay = [cell.strip() for cell in cells.split("|")]
        assert (items, batch, rate) == (stored["items"], stored["batch"], stored["rate"])
        assert (epochs, decay) == (stored.get("epochs", "1"), stored.get("weight_decay", "0"))

"""The tables of docs/results/README.md show the stored verdicts and numbers."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterable, Sequence
from decimal import Decimal
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from turnout.lab.studies.catalogue import GROUPS

ROOT = Path(__file__).parents[3]
RESULTS = ROOT / "docs" / "results"
#: A number with thousands separators and an optional sign, but not a part of a name such as `horizon=500`.
NUMBER = re.compile(r"(?<![\w=.])[-−]?\d[\d,]*(?:\.\d+)?(?:e[-+]\d+)?")


@cache
def claims_in(folder: str) -> list[dict[str, Any]]:
    claims: list[dict[str, Any]] = json.loads((RESULTS / folder / "claims.json").read_text())
    return claims


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
PACE = "FairPace, tolerance 2"
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
    "a smaller gamma_1": ["smaller gamma_1, more jitter", "smaller gamma_1, slower"],
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
    "the final accuracy of FairPace": ["FairPace above RBCS-F 20 and FedCS"],
    "random has a higher": ["random above FairPace"],
    "FairPace reaches 90 %": ["FairPace ahead of random"],
    "… before RBCS-F at weight 1": ["FairPace ahead of RBCS-F 1"],
    "… before RBCS-F at weight 20": ["FairPace ahead of RBCS-F 20"],
    "all 500 rounds": ["shorter than random and RBCS-F 1"],
}
#: The heading, the claims and the folders of each study that trains.
STUDIES = {
    "accuracy": ("Does fairness improve the final model?", ACCURACY_CLAIMS, DATASETS),
    "fair-pace": ("Training with FairPace", PACE_CLAIMS, tuple(f"fair-pace/{dataset}" for dataset in DATASETS)),
}


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


def marks_of(folder: str, names: Sequence[str]) -> str:
    """Returns the verdicts of these claims, one for each panel, which are the same for all names."""
    (marks,) = {
        " ".join(MARKS[claim["verdict"]] for claim in claims_in(folder) if claim["name"] == name) for name in names
    }
    return marks


def wrong_marks(rows: Sequence[Sequence[str]], claims: dict[str, list[str]], folders: Sequence[str]) -> list[str]:
    """Returns the claims whose cells do not show the stored verdicts; every row has to be expected, in this order."""
    assert len(rows) == len(claims)
    wrong = []
    for (claim, *marks, _), (start, names) in zip(rows, claims.items(), strict=True):
        assert claim.startswith(start)
        if names == ["stronger on CIFAR-10"]:  # it compares both datasets and is stored with them
            expected = ["", marks_of("fairness-impact", names)]
        else:
            expected = [marks_of(folder, names) for folder in folders]
        wrong += [] if marks == expected else [start]
    return wrong


def differences(shown: str, expected: Sequence[float]) -> list[str]:
    """Returns the numbers of a cell that are not the expected ones, rounded to their own digits, in this order."""
    numbers = numbers_in(NAMES.sub("", shown))
    assert len(numbers) == len(expected), (shown, expected)
    return [
        f"{number} is {actual}"
        for number, actual in zip(numbers, expected, strict=True)
        if abs(float(number) - actual) > 10.0 ** int(number.as_tuple().exponent) / 2 * (1 + 1e-6)
    ]


def measured(dataset: str, contender: str, column: str, gamma: str = "10") -> float:
    return value(f"{dataset}/accuracy-summary.csv", gamma, contender, column)


@pytest.mark.parametrize("study", STUDIES)
def test_the_marks_and_numbers_of_a_study_that_trains_are_the_stored_ones(study: str) -> None:
    (heading, claims, folders), rows = STUDIES[study], study_rows(STUDIES[study][0], GROUPS[study])
    assert wrong_marks(rows, claims, folders) == []
    stored = [
        claim for folder in (*folders, *(["fairness-impact"] * (study == "accuracy"))) for claim in claims_in(folder)
    ]
    assert {claim["name"] for claim in stored} == {name for names in claims.values() for name in names}, heading
    for (cell, *_, numbers), names in zip(rows, claims.values(), strict=True):
        assert unknown_numbers(NAMES.sub("", numbers), [claim for claim in stored if claim["name"] in names]) == [], (
            cell
        )


def test_wrong_marks_and_numbers_would_be_noticed() -> None:
    first, *others = study_rows(STUDIES["accuracy"][0], GROUPS["accuracy"])
    assert wrong_marks([[first[0], "? ? ?", "? ✓ ?", first[3]], *others], ACCURACY_CLAIMS, DATASETS) == [
        "more even selection"
    ]
    assert differences("CIFAR-10: 0.58, 12 at weights 1, 5", [0.5849, 11.6]) == []
    assert differences("CIFAR-10: 0.58, 12", [0.5861, 11.6]) == ["0.58 is 0.5861"]
    assert differences("0.58 and 0.62", [0.62, 0.58]) == ["0.58 is 0.62", "0.62 is 0.58"]


def test_shares_and_shortfalls_in_the_text_are_the_stored_ones() -> None:
    text = " ".join(section("Training with FairPace").split())
    sentence = text.partition("(of all seeds): ")[2].partition(". FairPace serves")[0]
    contenders = [PACE, "RBCS-F, weight 1", "RBCS-F, weight 20", "random", "FedCS(3)"]
    columns = ("least_share_of_all_rounds", "largest_shortfall_in_turns")
    for dataset in DATASETS:
        for gamma in ("1", "iid"):
            file = f"fair-pace/{dataset}/pace-fairness.csv"
            values = [value(file, gamma, contender, column) for contender in contenders for column in columns]
            assert differences(sentence, values) == [], (dataset, gamma)


def test_numbers_in_the_text_of_the_accuracy_study_are_the_stored_ones() -> None:
    text = " ".join(section("Does fairness improve the final model?").split())
    name, weight = "RBCS-F ahead of FedCS(3) in rounds", "RBCS-F, weight 50"
    for panel, words in (
        ("cifar-10, iid", "it needs {} rounds fewer for iid"),
        ("cifar-10, gamma 1", "and {} for gamma_1 = 1"),
    ):
        (claim,) = [claim for claim in claims_in("cifar-10") if (claim["name"], claim["panel"]) == (name, panel)]
        match = re.search(r"difference (\S+) ± (\S+?)[;)]", claim["numbers"][weight])
        assert match is not None
        assert words.format(f"{float(match[1]):.0f} ± {float(match[2]):.0f}") in text
    rounds = [
        measured("fashion-mnist", contender, "rounds_to_high", gamma)
        for contender in (*WEIGHTS, "FedCS(3)")
        for gamma in ("1", "10", "iid")
    ]
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

"""The tables of docs/results/README.md show the stored verdicts and numbers."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Sequence
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


def stored_claims(experiment: str) -> list[dict[str, Any]]:
    claims: list[dict[str, Any]] = json.loads((RESULTS / "numerical" / "claims.json").read_text())
    return [claim for claim in claims if claim["experiment"] == experiment]


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


@pytest.mark.parametrize("experiment", [name for name in GROUPS["numerical"] if name not in ("overview",)])
def test_every_claim_has_a_row_with_its_verdict(experiment: str) -> None:
    rows, claims = rows_of(experiment), stored_claims(experiment)
    assert [row[1].strip("*") for row in rows] == [claim["verdict"] for claim in claims]


@pytest.mark.parametrize("experiment", [name for name in GROUPS["numerical"] if name not in ("overview",)])
def test_every_number_of_a_row_was_printed_by_its_command(experiment: str) -> None:
    for (claim_cell, _, numbers), claim in zip(rows_of(experiment), stored_claims(experiment), strict=True):
        printed = numbers_in(" ".join([claim["statement"], *claim["numbers"], *claim["numbers"].values()]))
        assert numbers_in(numbers), claim_cell
        for number in numbers_in(numbers):
            assert is_shown(number, printed, percent=False) or (
                "%" in numbers and is_shown(number, printed, percent=True)
            ), (claim_cell, number)


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
CONCENTRATIONS = ["concentration 0.1", "concentration 1", "concentration 10", "even"]
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


@cache
def claims_in(folder: str) -> list[dict[str, Any]]:
    claims: list[dict[str, Any]] = json.loads((RESULTS / folder / "claims.json").read_text())
    return claims


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


def accuracy_rows() -> list[list[str]]:
    return study_rows("Does fairness improve the final model?", GROUPS["accuracy"])


def pace_rows() -> list[list[str]]:
    return study_rows("Training with FairPace", GROUPS["fair-pace"])


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


def printed_numbers(folder: str, name: str, panel: str) -> dict[str, list[float]]:
    """Returns the numbers behind a stored claim, by label."""
    (claim,) = [claim for claim in claims_in(folder) if (claim["name"], claim["panel"]) == (name, panel)]
    return {
        label: [float(number) for number in numbers_in(NAMES.sub("", text))] for label, text in claim["numbers"].items()
    }


def measured(dataset: str, contender: str, column: str, gamma: str = "10") -> float:
    return value(f"{dataset}/accuracy-summary.csv", gamma, contender, column)


def gain(dataset: str, gamma: str) -> float:
    """Returns the final accuracy of even selection minus that of the most uneven one."""
    even, uneven = (
        value(f"{dataset}/fairness-impact-summary.csv", gamma, contender, "final_accuracy")
        for contender in ("even", "concentration 0.1")
    )
    return even - uneven


def expected_accuracy() -> dict[str, list[float]]:
    """Returns the numbers of each row, from the stored tables where they have them, else from the claims."""
    gains = {dataset: [gain(dataset, gamma) for gamma in ("1", "10", "iid")] for dataset in DATASETS}
    slower = {dataset: printed_numbers(dataset, "smaller gamma_1, slower", dataset) for dataset in DATASETS}
    last = printed_numbers("cifar-10", "random worst at every target", "cifar-10, gamma 10")
    average = {
        dataset: printed_numbers(dataset, "weight 20 beats 50 on average", f"{dataset}, gamma 10")
        for dataset in DATASETS
    }
    parts = printed_numbers("cifar-10", "weight 20 beats 50 all the time", "cifar-10, gamma 10")
    late = [parts[f"part {part} of 10"][0] for part in range(3, 11)]
    rounds = [measured("cifar-10", weight, "rounds_to_high") for weight in WEIGHTS]
    return {
        "more even selection": [
            value("cifar-10/fairness-impact-summary.csv", "10", contender, "final_accuracy")
            for contender in CONCENTRATIONS
        ],
        "… and the gain is larger": [gain("cifar-10", "10") - gain("fashion-mnist", "10")],
        "gamma_1 has little impact": [
            *gains["fashion-mnist"],
            *gains["cifar-10"],
            *(sum(gains[dataset]) / 3 / 2 for dataset in DATASETS),
        ],
        "a smaller gamma_1": [
            slower[dataset][gamma][0] for dataset in DATASETS for gamma in ("iid", "gamma 10", "gamma 1")
        ],
        "random selection has the highest": [
            measured(dataset, contender, "final_accuracy")
            for contender in ("random", WEIGHTS[0])
            for dataset in DATASETS
        ],
        "a smaller weight": [measured("cifar-10", weight, "final_accuracy") for weight in WEIGHTS],
        "FedCS(3) has the lowest": [measured(dataset, "FedCS(3)", "final_accuracy") for dataset in DATASETS],
        "a larger weight needs": rounds,
        "RBCS-F needs fewer rounds": [*rounds, measured("cifar-10", "FedCS(3)", "rounds_to_high")],
        "FedCS(3) is first": [
            min(measured(dataset, contender, "minutes_to_low") for contender in contenders)
            for contenders in (["FedCS(3)"], WEIGHTS, ["random"])
            for dataset in DATASETS
        ],
        "RBCS-F is ahead": [
            measured(dataset, contender, "minutes_to_high")
            for dataset in DATASETS
            for contender in ("RBCS-F, weight 20", "random")
        ],
        "random selection is last": [
            *(numbers[0] for numbers in last.values()),
            measured("cifar-10", "FedCS(3)", "minutes_to_high"),
            measured("cifar-10", "FedCS(3)", "minutes_to_high_band"),
        ],
        "weight 20 is better": [average[dataset][weight][0] for dataset in DATASETS for weight in WEIGHTS[2:]],
        "… and in each of ten": [*parts["part 1 of 10"], *parts["part 2 of 10"], min(late), max(late)],
    }


def expected_pace() -> dict[str, list[float]]:
    def pace(dataset: str, contender: str, column: str) -> float:
        return value(f"fair-pace/{dataset}/pace-summary.csv", "1", contender, column)

    return {
        "the final accuracy of FairPace": [
            pace("cifar-10", contender, "final_accuracy") for contender in (PACE, "RBCS-F, weight 20", "FedCS(3)")
        ],
        "random has a higher": [
            pace(dataset, contender, "final_accuracy") for dataset in DATASETS for contender in ("random", PACE)
        ],
        "FairPace reaches 90 %": [
            pace(dataset, contender, "minutes_to_high") for dataset in DATASETS for contender in (PACE, "random")
        ],
        **{
            f"… before RBCS-F at weight {weight}": [
                pace(dataset, f"RBCS-F, weight {weight}", "minutes_to_high") for dataset in DATASETS
            ]
            for weight in (1, 20)
        },
        "all 500 rounds": [
            pace("cifar-10", contender, "minutes") for contender in (PACE, "random", "RBCS-F, weight 1")
        ],
    }


def test_the_marks_and_numbers_of_the_accuracy_study_are_the_stored_ones() -> None:
    assert wrong_marks(accuracy_rows(), ACCURACY_CLAIMS, DATASETS) == []
    stored = {claim["name"] for folder in (*DATASETS, "fairness-impact") for claim in claims_in(folder)}
    assert stored == {name for names in ACCURACY_CLAIMS.values() for name in names}
    expected = expected_accuracy()
    assert list(expected) == list(ACCURACY_CLAIMS)
    for (claim, *_, numbers), values in zip(accuracy_rows(), expected.values(), strict=True):
        assert differences(numbers, values) == [], claim


def test_the_marks_and_numbers_of_fair_pace_are_the_stored_ones() -> None:
    assert wrong_marks(pace_rows(), PACE_CLAIMS, [f"fair-pace/{dataset}" for dataset in DATASETS]) == []
    expected = expected_pace()
    assert list(expected) == list(PACE_CLAIMS)
    for (claim, *_, numbers), values in zip(pace_rows(), expected.values(), strict=True):
        assert differences(numbers, values) == [], claim


def test_wrong_marks_and_numbers_would_be_noticed() -> None:
    rows = accuracy_rows()
    first, *others = rows
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
        found = re.search(r"difference (\S+) ± (\S+?)[;)]", claim["numbers"][weight])
        assert found is not None
        assert words.format(f"{float(found[1]):.0f} ± {float(found[2]):.0f}") in text
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

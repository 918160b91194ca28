"""docs/paper.md, "The paper, section by section", is complete, and what it names exists."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from paper_page import (
    COLUMNS,
    ROOT,
    Reference,
    Row,
    empty_cells,
    load_claims,
    missing_claims,
    missing_code,
    missing_items,
    missing_tests,
    read_rows,
    split_line,
    stored_verdicts,
    wrong_verdicts,
)
from turnout.lab.studies.catalogue import GROUPS

PAGE = ROOT / "docs" / "paper.md"
EXPERIMENTS = (*GROUPS["numerical"], *GROUPS["accuracy"])
#: How many items of each kind the paper has; we number the claims.
NUMBERED = {
    "Eq": 60,
    "Algorithm": 2,
    "Theorem": 4,
    "Lemma": 4,
    "Definition": 1,
    "Fig": 7,
    "Table": 2,
    "Claim": 35,
}
#: Everything that the paper numbers or labels, its claims, its parameters, and the points in which we differ.
INVENTORY = (
    *(f"{kind} {number}" for kind, count in NUMBERED.items() for number in range(1, count + 1)),
    *(f"Parameter {symbol}" for symbol in ("β", "m", "λ", "α", "V", "N", "T", "B", "M", "μ", "ε", "I", "γ₁", "γ₂")),
    "Feasibility of P1",
    "C²MAB and UCB",
    "Context",
    "Baselines",
    "Networks",
    "Local training",
    "Machine",
    "Clamp at 0",
    "ReLU",
    "Unpadded convolutions",
    "Probability (1 − δ)²",
    "λ ≥ 1",
)
HEADER = "| " + " | ".join(COLUMNS) + " |\n|---|---|---|---|\n"
GOOD = Row(
    "Eq. 1: round time",
    "`kernel.rounds.RoundReport.duration`, `tests/literal.py`",
    "[test_rounds](../tests/kernel/test_rounds.py): the duration of a round is the time of its slowest client",
    "`some › queues › later`: holds",
)
CLAIMS = {
    "some": [{"experiment": "queues", "name": "later", "panel": "", "verdict": "holds"}],
    "three": [
        {"experiment": "rounds", "name": "best", "panel": str(panel), "verdict": verdict}
        for panel, verdict in enumerate(["holds", "not decided", "holds"])
    ],
}


@pytest.fixture(scope="module")
def rows() -> list[Row]:
    return read_rows(PAGE.read_text())


def test_the_page_has_no_empty_cell(rows: list[Row]) -> None:
    assert rows
    assert empty_cells(rows) == []


def test_everything_that_the_paper_numbers_is_on_the_page_once(rows: list[Row]) -> None:
    assert missing_items(rows, INVENTORY) == []


def test_every_place_in_the_code_exists(rows: list[Row]) -> None:
    assert missing_code(rows) == []


def test_every_named_test_exists(rows: list[Row]) -> None:
    assert missing_tests(rows) == []


def test_every_verdict_is_the_stored_one(rows: list[Row]) -> None:
    assert wrong_verdicts(rows, load_claims()) == []


def test_every_stored_claim_of_the_papers_experiments_is_on_the_page(rows: list[Row]) -> None:
    claims = load_claims()
    assert {claim["experiment"] for stored in claims.values() for claim in stored} >= set(EXPERIMENTS) - {"overview"}
    assert missing_claims(rows, claims, EXPERIMENTS) == []


@pytest.mark.parametrize("page", ["docs/index.md", "docs/theory.md", "docs/results/README.md", "README.md"])
def test_the_page_is_linked(page: str) -> None:
    assert "paper.md)" in (ROOT / page).read_text()


#: The stored claims behind each line of README's table; a line has one verdict, that of all of them.
README_CLAIMS = {
    "random selection takes the most time, FedCS(3) the least, and RBCS-F less with a larger weight": [
        ("numerical", "training-time", "random slowest"),
        ("numerical", "training-time", "FedCS(3) shortest"),
        ("numerical", "training-time", "larger weight, shorter"),
    ],
    "a larger weight divides turns less evenly": [("numerical", "pull-record", "spread grows")],
    "owed turns level off within 500 rounds at every weight": [
        ("numerical", "queues", "flattens within 500 rounds"),
        ("numerical", "stability", "flattens within 500 rounds"),
    ],
    "… within 1,000 rounds": [("numerical", "stability", "flattens within 1,000 rounds")],
    "owed turns divided by rounds fall towards 0": [
        ("numerical", "stability", "owed/rounds falls"),
        ("numerical", "stability", "mean-rate stable"),
    ],
    "more even selection gives a higher final accuracy": [
        ("fashion-mnist", "fairness-impact", "fairer ends higher"),
        ("cifar-10", "fairness-impact", "fairer ends higher"),
    ],
    "random selection has the highest final accuracy": [
        ("fashion-mnist", "accuracy-rounds", "random best"),
        ("cifar-10", "accuracy-rounds", "random best"),
    ],
    "FedCS(3) has the lowest final accuracy": [
        ("fashion-mnist", "accuracy-rounds", "FedCS(3) worst"),
        ("cifar-10", "accuracy-rounds", "FedCS(3) worst"),
    ],
    "RBCS-F reaches 90 % of random's accuracy before random, at every weight": [
        ("fashion-mnist", "accuracy-time", "RBCS-F ahead of random"),
        ("cifar-10", "accuracy-time", "RBCS-F ahead of random"),
    ],
}


def wrong_lines(text: str, claims: Mapping[str, Any]) -> list[str]:
    """Returns the lines of README's table of claims whose verdict is not that of all of their stored claims."""
    table = text.partition("| claim of the paper | verdict |\n|---|---|\n")[2].partition("\n\n")[0]
    lines = [split_line(line) for line in table.splitlines()]
    assert [claim for claim, _ in lines] == list(README_CLAIMS)
    return [
        claim
        for claim, verdict in lines
        for names in README_CLAIMS[claim]
        if set(stored_verdicts(Reference(*names, verdicts=()), claims)) != {verdict.strip("*")}
    ]


def test_the_verdicts_in_the_readme_are_the_stored_ones() -> None:
    text, claims = (ROOT / "README.md").read_text(), load_claims()
    assert wrong_lines(text, claims) == []
    changed = text.replace("turns less evenly | holds |", "turns less evenly | not decided |")
    assert wrong_lines(changed, claims) == ["a larger weight divides turns less evenly"]


# The checks find mistakes in made-up pages.


def complaints_of(row: Row) -> list[str]:
    """Returns everything that the checks find in a page of one row."""
    read = read_rows(HEADER + "| " + " | ".join(row) + " |")
    assert read == [row]
    return [
        *empty_cells(read),
        *missing_items(read, ["Eq 1"]),
        *missing_code(read),
        *missing_tests(read),
        *wrong_verdicts(read, CLAIMS),
    ]


def test_a_good_row_has_no_complaints() -> None:
    assert complaints_of(GOOD) == []
    assert complaints_of(GOOD._replace(code="proof step", test="by reading", verdict="gap: a reason")) == []


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"code": "–"}, "nothing in 'code'"),
        ({"paper": "Eq. 2: another"}, "'Eq 1' has 0 rows"),
        ({"paper": "Claim 99: unknown"}, "is not in the inventory"),
        ({"code": "`kernel.rounds.RoundReport.length`"}, "no such code: kernel.rounds.RoundReport.length"),
        ({"code": "`tests/no_such_file.py`"}, "no such code: tests/no_such_file.py"),
        ({"code": "somewhere in `kernel`"}, "the code is not a list of names"),
        ({"test": "[test_rounds](../tests/kernel/test_rounds.py): no such sentence"}, "no such test"),
        ({"test": GOOD.test.replace("[test_rounds]", "[test_cohort]")}, "no such test"),
        ({"test": "tested"}, "not a test: tested"),
        ({"verdict": "`some › queues › later`: not decided"}, "'later' is holds"),
        ({"verdict": "`some › queues › never`: holds"}, "'never' is not stored"),
        ({"verdict": "`three › rounds › best`: holds, holds, not decided"}, "'best' is holds, not decided, holds"),
        ({"verdict": "holds"}, "not a verdict: holds"),
        ({"verdict": "definition, which holds"}, "a verdict without a stored claim"),
    ],
)
def test_a_broken_row_is_found(change: dict[str, Any], complaint: str) -> None:
    assert [found for found in complaints_of(GOOD._replace(**change)) if complaint in found]


def test_an_item_with_two_rows_and_a_claim_that_is_not_on_the_page_are_found() -> None:
    several = GOOD._replace(verdict="`three › rounds › best`: holds, not decided, holds")
    assert wrong_verdicts([several], CLAIMS) == []
    assert missing_items([GOOD, GOOD], ["Eq 1"]) == ["'Eq 1' has 2 rows"]
    missing = missing_claims([GOOD], CLAIMS, ["queues", "rounds"])
    assert [complaint.split(":")[0] for complaint in missing] == ["three", "three", "three"]
    assert missing_claims([GOOD], CLAIMS, ["queues"]) == []
    other = {**CLAIMS, "second": [{**CLAIMS["some"][0], "verdict": "not decided"}]}
    assert missing_claims([GOOD], other, ["queues"]) == ["second: queues, later, : not on the page as not decided"]


@pytest.mark.parametrize("text", [HEADER.replace("verdict", "result"), HEADER + "| Eq. 1: round time | `kernel` |\n"])
def test_a_table_of_another_shape_is_rejected(text: str) -> None:
    with pytest.raises(ValueError, match=r"columns|cells"):
        read_rows(text)

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
    missing_figures,
    missing_items,
    missing_tests,
    read_rows,
    references_of,
    split_line,
    stored_verdicts,
    wrong_verdicts,
)
from turnout.lab.studies.catalogue import GROUPS

PAGE = ROOT / "docs" / "paper.md"
EXPERIMENTS = (*GROUPS["numerical"], *GROUPS["accuracy"])
#: Everything that the paper numbers or labels, its claims, its parameters, and the points in which we differ.
INVENTORY = (
    "Eq. 1: round time",
    "Eq. 2: fairness constraint",
    "Eq. 3: availability",
    "Eq. 4: cohort size",
    "Eq. 5: problem P1",
    "Eq. 6: virtual queue",
    "Eq. 7: the limit of arrivals",
    "Eq. 8: Lyapunov function",
    "Eq. 9: drift",
    "Eq. 10: drift plus cost",
    "Eq. 11: bound on drift plus cost",
    "Eq. 12: problem P2",
    "Eq. 13: problem P3",
    "Eq. 14: time model",
    "Eq. 15: sub-Gaussian noise",
    "Eq. 16: history",
    "Eq. 17: ridge regression",
    "Eq. 18: incremental form",
    "Eq. 19: optimistic time",
    "Eq. 20: the band",
    "Eq. 21: problem P4",
    "Eq. 22: problem P4-SUB",
    "Eq. 23: regret",
    "Eq. 24: bound on the regret",
    "Eq. 25: square of the queue",
    "Eq. 26: growth of the square",
    "Eq. 27: bound on the drift",
    "Eq. 28: confidence set of θ",
    "Eq. 29: error as a minimum",
    "Eq. 30: lower side",
    "Eq. 31: upper side",
    "Eq. 32: regret, written out",
    "Eq. 33: expected drift",
    "Eq. 34: drift and regret of one round",
    "Eq. 35: sum over all rounds",
    "Eq. 36: the term G₁",
    "Eq. 37: division by V and T",
    "Eq. 38: empty queues at the start",
    "Eq. 39: the policy π′",
    "Eq. 40: RBCS-F minimises P4",
    "Eq. 41: π′ minimises P3",
    "Eq. 42: G₁ by two clients",
    "Eq. 43: expectation of G₁",
    "Eq. 44: error of one client",
    "Eq. 45: sum of uncertainties",
    "Eq. 46: the second term of the bound",
    "Eq. 47: bound on the regret",
    "Eq. 48: its time and its rate",
    "Eq. 49: RBCS-F minimises the bound",
    "Eq. 50: in expectation",
    "Eq. 51: drift plus cost with δ′",
    "Eq. 52: δ′ → 0",
    "Eq. 53: sum over all rounds",
    "Eq. 54: law of large numbers",
    "Eq. 55: nobody is faster than the best policy",
    "Eq. 56: growth of the Lyapunov function",
    "Eq. 57: sum of squares",
    "Eq. 58: sum of the queues",
    "Eq. 59: sum of the queues over T",
    "Eq. 60: mean-rate stability",
    "Algorithm 1: divide and conquer",
    "Algorithm 2: RBCS-F",
    "Theorem 1: stable queues keep the constraint",
    "Theorem 2: a bound on drift plus cost",
    "Theorem 3: bound on the regret",
    "Theorem 4: queues are mean-rate stable",
    "Lemma 1: confidence band",
    "Lemma 2: confidence set of θ",
    "Lemma 3: sum of uncertainties",
    "Lemma 4: policies that decide by availability alone",
    "Definition 1: regret",
    "Fig. 1: a round of federated learning",
    "Fig. 2: queues",
    "Fig. 3: training time",
    "Fig. 4: pull record",
    "Fig. 5: impact of fairness",
    "Fig. 6: accuracy against rounds",
    "Fig. 7: accuracy against time",
    "Table 1: classes of clients",
    "Table 2: parameters",
    "Claim 1: no violation of the fairness constraint",
    "Claim 2: training is much faster than with random",
    "Claim 3: the final accuracy stays close to that of random",
    "Claim 4: the regret is bounded by a finite constant",
    "Claim 5: unfair selection can hurt the model",
    "Claim 6: a longer settled queue means an unfairer selection",
    "Claim 7: Algorithm 1 solves P4 in O(N²)",
    "Claim 8: a larger V gives shorter rounds in the long run",
    "Claim 9: queues converge more slowly with a larger V",
    "Claim 10: in finitely many rounds a large V costs fairness",
    "Claim 11: queues flatten for every V",
    "Claim 12: a larger V converges more slowly and to a higher value",
    "Claim 13: RBCS-F takes less time than random",
    "Claim 14: a higher V takes less time",
    "Claim 15: FedCS(3) takes less time than RBCS-F",
    "Claim 16: FedCS(3) selects about 8 clients",
    "Claim 17: turns vary more with a high V",
    "Claim 18: FedCS(3) is the most uneven",
    "Claim 19: random and a low V are even",
    "Claim 20: a fairer selection ends at a higher accuracy",
    "Claim 21: the effect is stronger on CIFAR-10",
    "Claim 22: fairness matters more in harder tasks",
    "Claim 23: a smaller γ₁ gives more jitter and slower convergence",
    "Claim 24: γ₁ has little or no impact on the effect of fairness",
    "Claim 25: a smaller V ends at a higher accuracy",
    "Claim 26: random has the highest final accuracy",
    "Claim 27: FedCS(3) has the lowest final accuracy",
    "Claim 28: a higher V needs more rounds",
    "Claim 29: RBCS-F needs fewer rounds than FedCS(3)",
    "Claim 30: a fairer scheme ends higher",
    "Claim 31: FedCS(3) is first at a low accuracy",
    "Claim 32: random is the slowest",
    "Claim 33: RBCS-F is far ahead of random",
    "Claim 34: weight 20 beats 50 during the whole process",
    "Claim 35: fairness raises accuracy and costs time",
    "Feasibility of P1",
    "C²MAB and UCB",
    "Context",
    "Parameter β",
    "Parameter m",
    "Parameter λ",
    "Parameter α",
    "Parameter V",
    "Parameter N",
    "Parameter T",
    "Parameter B",
    "Parameter M",
    "Parameter μ",
    "Parameter ε",
    "Parameter I",
    "Parameter γ₁",
    "Parameter γ₂",
    "Baseline random",
    "Baseline FedCS(3)",
    "Network for Fashion-MNIST",
    "Network for CIFAR-10",
    "Local training",
    "Machine",
    "Clamp at 0",
    "ReLU",
    "Unpadded convolutions",
    "Probability (1 − δ)²",
    "λ ≥ 1",
)
HEADER = "| " + " | ".join(COLUMNS) + " |\n|---|---|---|---|---|---|\n"
GOOD = Row(
    "Eq. 1: round time",
    "the slowest client",
    "`kernel.rounds.RoundReport.duration`, `tests/literal.py`",
    "[test_rounds](../tests/kernel/test_rounds.py): the duration of a round is the time of its slowest client",
    "[queues](results/numerical/queues.svg), [theory](theory.md#the-lemma)",
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
    assert len([name for name in INVENTORY if name.startswith("Eq. ")]) == 60
    assert missing_items(rows, INVENTORY) == []


def test_every_place_in_the_code_exists(rows: list[Row]) -> None:
    assert missing_code(rows) == []


def test_every_named_test_exists(rows: list[Row]) -> None:
    assert missing_tests(rows) == []


def test_every_figure_and_page_exists(rows: list[Row]) -> None:
    assert missing_figures(rows, PAGE) == []


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
        *missing_items(read, [GOOD.paper]),
        *missing_code(read),
        *missing_tests(read),
        *missing_figures(read, PAGE),
        *wrong_verdicts(read, CLAIMS),
    ]


def test_a_good_row_has_no_complaints() -> None:
    assert complaints_of(GOOD) == []
    assert complaints_of(GOOD._replace(code="proof step", test="by reading", verdict="gap: a reason")) == []


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"words": "–"}, "nothing in 'in our words'"),
        ({"verdict": ""}, "nothing in 'verdict'"),
        ({"paper": "Eq. 2: another"}, "'Eq. 1: round time' has 0 rows"),
        ({"paper": "Claim 99: unknown"}, "is not in the inventory"),
        ({"code": "`kernel.rounds.RoundReport.length`"}, "no such code: kernel.rounds.RoundReport.length"),
        ({"code": "`kernel.squares`"}, "no such code: kernel.squares"),
        ({"code": "`tests/no_such_file.py`"}, "no such code: tests/no_such_file.py"),
        ({"code": "somewhere in `kernel`"}, "the code is not a list of names"),
        ({"code": "code"}, "the code is not a list of names"),
        ({"test": "[test_rounds](../tests/kernel/test_rounds.py): no such sentence"}, "no such test"),
        ({"test": "[test_squares](../tests/kernel/test_squares.py): a record"}, "no such test"),
        ({"test": GOOD.test.replace("[test_rounds]", "[test_cohort]")}, "no such test"),
        ({"test": "tested"}, "not a test: tested"),
        ({"shown": "definition"}, "nothing is linked"),
        ({"shown": "[queues](results/numerical/queue.svg)"}, "no such figure or page: results/numerical/queue.svg"),
        ({"shown": "[theory](theory.md#no-such-heading)"}, "no such figure or page: theory.md#no-such-heading"),
        ({"verdict": "`some › queues › later`: not decided"}, "'later' is holds"),
        ({"verdict": "`some › queues › later`"}, "'later' is holds"),
        ({"verdict": "`some › queues › never`: holds"}, "'never' is not stored"),
        ({"verdict": "`other › queues › later`: holds"}, "'later' is not stored"),
        ({"verdict": "`three › rounds › best`: holds"}, "'best' is holds, not decided, holds"),
        ({"verdict": "`three › rounds › best`: holds, holds, not decided"}, "'best' is holds, not decided, holds"),
        ({"verdict": "holds"}, "not a verdict: holds"),
        ({"verdict": "definition, which holds"}, "a verdict without a stored claim"),
        ({"verdict": "`some › queues › later`: holds; does not hold"}, "a verdict without a stored claim"),
    ],
)
def test_a_broken_row_is_found(change: dict[str, Any], complaint: str) -> None:
    assert [found for found in complaints_of(GOOD._replace(**change)) if complaint in found]


def test_verdicts_of_several_panels_are_compared_in_their_order() -> None:
    row = GOOD._replace(verdict="`three › rounds › best`: holds, not decided, holds")
    assert references_of(row.verdict)[0].verdicts == ("holds", "not decided", "holds")
    assert wrong_verdicts([row], CLAIMS) == []


def test_an_item_with_two_rows_is_found() -> None:
    assert missing_items([GOOD, GOOD], [GOOD.paper]) == ["'Eq. 1: round time' has 2 rows"]


def test_a_stored_claim_that_is_not_on_the_page_is_found() -> None:
    found = missing_claims([GOOD], CLAIMS, ["queues", "rounds"])
    assert [complaint.split(":")[0] for complaint in found] == ["three", "three", "three"]
    assert missing_claims([GOOD], CLAIMS, ["queues"]) == []
    other = {**CLAIMS, "second": [{**CLAIMS["some"][0], "verdict": "not decided"}]}
    assert missing_claims([GOOD], other, ["queues"]) == ["second: queues, later, : not on the page as not decided"]


@pytest.mark.parametrize(
    "text",
    [
        HEADER.replace("verdict", "result"),
        HEADER + "| Eq. 1: round time | the slowest client | `kernel` |\n",
        "| claim | verdict |\n|---|---|\n| a | b |\n",
    ],
)
def test_a_table_of_another_shape_is_rejected(text: str) -> None:
    with pytest.raises(ValueError, match=r"columns|cells"):
        read_rows(text)

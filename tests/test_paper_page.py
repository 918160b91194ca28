"""docs/paper.md, "The paper, section by section", is complete, and what it names exists."""

from __future__ import annotations

import ast
import importlib
import json
import re
from collections import Counter
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from turnout.lab.studies.catalogue import GROUPS

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "docs" / "results"
EXPERIMENTS = {*GROUPS["numerical"], *GROUPS["accuracy"]}
COLUMNS = ["paper", "code", "test", "verdict"]
#: How the verdict of something begins that no experiment decides.
KINDS = (
    "definition",
    "assumption",
    "setting",
    "background",
    "exact",
    "proved",
    "gap",
    "difference",
    "no verdict",
    "see",
)
#: The kinds of items that the paper numbers or lists, in the singular and in the plural.
KIND = re.compile(r"(Eq|Fig|Table|Algorithm|Theorem|Lemma|Definition|Claim|Parameter)s?\.? (.+)", flags=re.IGNORECASE)
NO_CODE, NO_TEST = "proof step", "by reading"
VERDICT = "holds|does not hold|not decided"
REFERENCE = re.compile(rf"`([^`›]+) › ([^`›]+) › ([^`›]+)`(?:: ((?:{VERDICT})(?:, (?:{VERDICT}))*))?")
TEST = re.compile(r"\[(\w+)\]\(\.\./(tests/[\w/]+\.py)\)(?:: ([a-z0-9 ]+))?")
#: The verdicts that rest on a single test, which is named.
BY_ONE_TEST = ("definition", "assumption", "exact", "proved", "gap", "difference")
#: The folder of which the page says that it decides no claim that is not named.
UNDECIDED = "digits"
#: How many items of each kind the paper has; we number the claims.
NUMBERED = {"Eq": 60, "Algorithm": 2, "Theorem": 4, "Lemma": 4, "Definition": 1, "Fig": 7, "Table": 2, "Claim": 35}
#: Everything that the paper numbers or labels, its claims, its parameters, and the points in which we differ.
INVENTORY = (
    *(f"{kind} {number}" for kind, count in NUMBERED.items() for number in range(1, count + 1)),
    *(f"Parameter {symbol}" for symbol in ("β", "m", "λ", "α", "V", "N", "T", "B", "M", "μ", "ε", "I", "γ₁", "γ₂")),
    "Feasibility of P1",
    "Independent rounds",
    'Line 13 of Algorithm 1, "break the first loop"',
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


class Row(NamedTuple):
    """A line of a table of the page."""

    paper: str
    code: str
    test: str
    verdict: str


def split_line(line: str) -> list[str]:
    """Returns the cells of a line of a table."""
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


@pytest.fixture(scope="module")
def rows() -> list[Row]:
    """The lines of all tables, which have the same columns."""
    rows: list[Row] = []
    for table in re.findall(r"(?:^\|.*\n)+", (ROOT / "docs" / "paper.md").read_text(), flags=re.MULTILINE):
        header, _, *lines = table.splitlines()
        assert split_line(header) == COLUMNS
        rows += [Row(*split_line(line)) for line in lines]
    assert rows
    return rows


@pytest.fixture(scope="module")
def claims() -> dict[str, list[dict[str, Any]]]:
    """The stored claims of every folder of results."""
    files = sorted(RESULTS.rglob("claims.json"))
    claims = {str(file.parent.relative_to(RESULTS)): json.loads(file.read_text()) for file in files}
    assert {claim["experiment"] for stored in claims.values() for claim in stored} >= EXPERIMENTS - {"overview"}
    return claims


Claims = dict[str, list[dict[str, Any]]]


def stored_verdicts(claims: Claims, folder: str, experiment: str, name: str) -> dict[str, str]:
    """Returns the stored verdicts of a claim, by panel."""
    stored = (claim for claim in claims.get(folder, ()) if (claim["experiment"], claim["name"]) == (experiment, name))
    return {claim["panel"]: claim["verdict"] for claim in stored}


def test_the_page_has_no_empty_cell(rows: list[Row]) -> None:
    assert [row for row in rows for cell in row if not re.search(r"[^\W\d_]", cell)] == []  # a dash is not enough


def items_of(label: str) -> list[str]:
    """Returns the items that a row is about.

    >>> items_of("Eqs. 9 to 11, Theorem 2: a bound on drift plus cost")
    ['Eq 9', 'Eq 10', 'Eq 11', 'Theorem 2']
    >>> items_of("Table 2, parameters m and V"), items_of("C²MAB and UCB")
    (['Table 2', 'Parameter m', 'Parameter V'], ['C²MAB and UCB'])
    """
    name = label.partition(":")[0]
    if not KIND.match(name):
        return [name]
    items, kind = [], ""
    for part in re.split(r", | and ", name):
        named = KIND.match(part)
        kind, value = (named[1].capitalize(), named[2]) if named else (kind, part)
        first, _, last = value.partition(" to ")
        items += [f"{kind} {number}" for number in range(int(first), int(last) + 1)] if last else [f"{kind} {value}"]
    return items


def test_everything_that_the_paper_numbers_is_on_the_page_once(rows: list[Row]) -> None:
    items = Counter(item for row in rows for item in items_of(row.paper))
    assert {name: items[name] for name in INVENTORY if items[name] != 1} == {}
    assert {name for name in items if KIND.match(name)} <= set(INVENTORY)


@cache
def code_exists(name: str) -> bool:
    """Returns whether a name below the package, or a file of the repository, exists."""
    if "/" in name:
        return (ROOT / name).is_file()
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        try:
            value = importlib.import_module(".".join(["turnout", *parts[:length]]))
        except ModuleNotFoundError:
            continue
        for attribute in parts[length:]:
            if not hasattr(value, attribute):
                return False
            value = getattr(value, attribute)
        return True
    return False


def test_every_place_in_the_code_exists(rows: list[Row]) -> None:
    for row in rows:
        names = re.findall(r"`([^`]+)`", row.code)
        assert row.code in (NO_CODE, ", ".join(f"`{name}`" for name in names)), row
        assert [name for name in names if not code_exists(name)] == [], row
    assert not code_exists("kernel.rounds.RoundReport.length")


@cache
def functions_in(path: str) -> frozenset[str]:
    """Returns the names of all functions in a test file; none if there is no such file."""
    file = ROOT / path
    if not file.is_file():
        return frozenset()
    return frozenset(node.name for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.FunctionDef))


def test_every_named_test_exists(rows: list[Row]) -> None:
    for row in rows:
        for part in row.test.split("; ") if row.test != NO_TEST else ():
            named = TEST.fullmatch(part)
            assert named is not None, row
            label, path, words = named.groups()
            assert Path(path).stem == label, row
            assert functions_in(path), row
            assert words or not row.verdict.startswith(BY_ONE_TEST), row
            assert not words or f"test_{words.replace(' ', '_')}" in functions_in(path), row


def test_every_verdict_is_the_stored_one_and_every_stored_claim_is_on_the_page(rows: list[Row], claims: Claims) -> None:
    """A claim that is stored in two folders is named once, and has the same verdict in both."""
    shown: dict[tuple[str, ...], str] = {}
    for row in rows:
        references = REFERENCE.findall(row.verdict)
        assert references or re.match(rf"(?:{'|'.join(KINDS)})(?:$|[:;, ])", row.verdict), row
        assert not re.search(rf"\b(?:{VERDICT})\b|›", REFERENCE.sub("", row.verdict)), row
        for folders, experiment, names, verdicts in references:
            for folder, name in product(folders.split(", "), names.split("; ")):
                stored = stored_verdicts(claims, folder, experiment, name)
                of_panels = list(stored.values())
                assert of_panels, row
                assert verdicts.split(", ") == of_panels or {verdicts} == {*of_panels}, row
                shown |= {(folder, experiment, name, panel): verdict for panel, verdict in stored.items()}
    anywhere = {key[1:]: verdict for key, verdict in shown.items()}
    for folder, stored_claims in claims.items():
        for claim in stored_claims:
            key = (claim["experiment"], claim["name"], claim["panel"])
            elsewhere = "not decided" if folder == UNDECIDED else anywhere.get(key, "")
            verdict = shown.get((folder, *key), elsewhere)
            assert claim["experiment"] not in EXPERIMENTS or verdict == claim["verdict"], (folder, claim)


@pytest.mark.parametrize("page", ["docs/index.md", "docs/theory.md", "docs/results/README.md", "README.md"])
def test_the_page_is_linked(page: str) -> None:
    assert "paper.md)" in (ROOT / page).read_text()


def on_both(experiment: str, name: str) -> list[tuple[str, str, str]]:
    return [(dataset, experiment, name) for dataset in ("fashion-mnist", "cifar-10")]


#: The stored claims behind each line of README's table, which states their usual verdict and the exceptions.
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
    "more even selection gives a higher final accuracy": on_both("fairness-impact", "fairer ends higher"),
    "random selection has the highest final accuracy": on_both("accuracy-rounds", "random best"),
    "FedCS(3) has the lowest final accuracy": on_both("accuracy-rounds", "FedCS(3) worst"),
    "RBCS-F reaches 90 % of random's accuracy before random, at every weight": on_both(
        "accuracy-time", "RBCS-F ahead of random"
    ),
}


def test_the_verdicts_in_the_readme_are_the_stored_ones(claims: Claims) -> None:
    text = (ROOT / "README.md").read_text()
    table = text.partition("| claim of the paper | verdict |\n|---|---|\n")[2].partition("\n\n")[0]
    verdicts = dict(split_line(line) for line in table.splitlines())
    assert list(verdicts) == list(README_CLAIMS)
    for claim, names in README_CLAIMS.items():
        stored = Counter(verdict for name in names for verdict in stored_verdicts(claims, *name).values())
        (usual, _), *others = stored.most_common()
        exceptions = "".join(f" ({count} of {stored.total()}: {verdict})" for verdict, count in others)
        assert verdicts[claim].replace("*", "") == usual + exceptions, claim

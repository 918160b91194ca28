"""Reads the tables of docs/paper.md, and finds what is wrong with them.

Each check returns its complaints as sentences, so that a test can show that it finds something in a broken page.
"""

from __future__ import annotations

import ast
import importlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "docs" / "results"
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
TEST = re.compile(r"\[(\w+)\]\(\.\./(tests/[\w/]+\.py)\): ([a-z0-9 ]+)")


class Row(NamedTuple):
    """A line of a table of the page."""

    paper: str
    code: str
    test: str
    verdict: str


class Reference(NamedTuple):
    """A stored claim that a verdict names: its folder, experiment and name, and the verdicts that the page shows."""

    folder: str
    experiment: str
    name: str
    verdicts: tuple[str, ...]


Claims = Mapping[str, Sequence[Mapping[str, Any]]]


def split_line(line: str) -> list[str]:
    """Returns the cells of a line of a table."""
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


def read_rows(text: str) -> list[Row]:
    """Returns the lines of all tables, without headers.

    Raises:
        ValueError: If a table has other columns, or a line has another number of cells.
    """
    rows: list[Row] = []
    lines = text.splitlines()
    for number, line in enumerate(lines):
        if not line.startswith("|") or re.fullmatch(r"[|-]+", line):
            continue
        cells = split_line(line)
        is_header = number + 1 < len(lines) and re.fullmatch(r"[|-]+", lines[number + 1]) is not None
        if is_header and cells != COLUMNS:
            raise ValueError(f"line {number + 1}: a table has the columns {cells}")
        if len(cells) != len(COLUMNS):
            raise ValueError(f"line {number + 1} has {len(cells)} cells")
        if not is_header:
            rows.append(Row(*cells))
    return rows


def references_of(verdict: str) -> list[Reference]:
    """Returns the stored claims that a verdict names."""
    return [
        Reference(folder, experiment, name, tuple(verdicts.split(", ")) if verdicts else ())
        for folder, experiment, name, verdicts in REFERENCE.findall(verdict)
    ]


def empty_cells(rows: Iterable[Row]) -> list[str]:
    """Finds cells without a letter: a dash is not enough."""
    return [
        f"{row.paper}: nothing in {column!r}"
        for row in rows
        for column, cell in zip(COLUMNS, row, strict=True)
        if not re.search(r"[^\W\d_]", cell)
    ]


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
        found = KIND.match(part)
        kind, value = (found[1].capitalize(), found[2]) if found else (kind, part)
        first, _, last = value.partition(" to ")
        items += [f"{kind} {number}" for number in range(int(first), int(last) + 1)] if last else [f"{kind} {value}"]
    return items


def missing_items(rows: Iterable[Row], inventory: Sequence[str]) -> list[str]:
    """Finds items of the paper without a row or with several, and items that the inventory does not have."""
    found = [item for row in rows for item in items_of(row.paper)]
    return [
        *(f"{name!r} has {found.count(name)} rows" for name in inventory if found.count(name) != 1),
        *(f"{name!r} is not in the inventory" for name in found if KIND.match(name) and name not in inventory),
    ]


def missing_code(rows: Iterable[Row]) -> list[str]:
    """Finds names that cannot be imported, and files that do not exist."""
    complaints = []
    for row in rows:
        if row.code == NO_CODE:
            continue
        names = re.findall(r"`([^`]+)`", row.code)
        if not names or re.sub(r"`[^`]+`", "", row.code).strip(", "):
            complaints.append(f"{row.paper}: the code is not a list of names: {row.code}")
        complaints += [f"{row.paper}: no such code: {name}" for name in names if not code_exists(name)]
    return complaints


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


def missing_tests(rows: Iterable[Row]) -> list[str]:
    """Finds tests that do not exist."""
    complaints = []
    for row in rows:
        if row.test == NO_TEST:
            continue
        for part in row.test.split("; "):
            found = TEST.fullmatch(part)
            if found is None:
                complaints.append(f"{row.paper}: not a test: {part}")
                continue
            label, path, words = found.groups()
            if Path(path).stem != label or f"test_{words.replace(' ', '_')}" not in functions_in(path):
                complaints.append(f"{row.paper}: no such test: {part}")
    return complaints


@cache
def functions_in(path: str) -> frozenset[str]:
    """Returns the names of all functions in a test file; none if there is no such file."""
    file = ROOT / path
    if not file.is_file():
        return frozenset()
    return frozenset(node.name for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.FunctionDef))


def wrong_verdicts(rows: Iterable[Row], claims: Claims) -> list[str]:
    """Finds verdicts that are not those of the stored claims, and cells that are no verdict."""
    complaints = []
    for row in rows:
        references = references_of(row.verdict)
        if not references and not re.match(rf"(?:{'|'.join(KINDS)})(?:$|[:;, ])", row.verdict):
            complaints.append(f"{row.paper}: not a verdict: {row.verdict}")
        for reference in references:
            stored = stored_verdicts(reference, claims)
            shown = reference.verdicts
            if not stored or (set(shown) if len(shown) == 1 else shown) != (set(stored) if len(shown) == 1 else stored):
                complaints.append(f"{row.paper}: {reference.name!r} is {', '.join(stored) or 'not stored'}")
        rest = REFERENCE.sub("", row.verdict)
        if re.search(rf"\b(?:{VERDICT})\b|›", rest):
            complaints.append(f"{row.paper}: a verdict without a stored claim: {rest}")
    return complaints


def stored_verdicts(reference: Reference, claims: Claims) -> tuple[str, ...]:
    """Returns the stored verdicts of a claim, one for each panel."""
    return tuple(
        claim["verdict"]
        for claim in claims.get(reference.folder, ())
        if (claim["experiment"], claim["name"]) == (reference.experiment, reference.name)
    )


def missing_claims(rows: Iterable[Row], claims: Claims, experiments: Iterable[str]) -> list[str]:
    """Finds stored claims of these experiments that the page does not name.

    A claim that is stored in two folders is named once, and has the same verdict in both.
    """
    wanted = set(experiments)
    named: dict[tuple[str, str, str], str] = {}
    for row in rows:
        for reference in references_of(row.verdict):
            for claim in claims.get(reference.folder, ()):
                if (claim["experiment"], claim["name"]) == (reference.experiment, reference.name):
                    named[claim["experiment"], claim["name"], claim["panel"]] = claim["verdict"]
    return [
        f"{folder}: {claim['experiment']}, {claim['name']}, {claim['panel']}: not on the page as {claim['verdict']}"
        for folder, stored in claims.items()
        for claim in stored
        if claim["experiment"] in wanted
        and named.get((claim["experiment"], claim["name"], claim["panel"])) != claim["verdict"]
    ]


def load_claims() -> dict[str, list[dict[str, Any]]]:
    """Returns the stored claims of every folder of results."""
    return {
        str(file.parent.relative_to(RESULTS)): json.loads(file.read_text())
        for file in sorted(RESULTS.rglob("claims.json"))
    }

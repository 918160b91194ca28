"""The tables of docs/results/README.md show the stored verdicts and numbers of the numerical study."""

from __future__ import annotations

import json
import re
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from turnout.experiments.catalogue import GROUPS

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "docs" / "results"
#: A number with thousands separators and an optional sign, but not a part of a name such as `horizon=500`.
NUMBER = re.compile(r"(?<![\w=.])[-−]?\d[\d,]*(?:\.\d+)?(?:e[-+]\d+)?")


def stored_claims(experiment: str) -> list[dict[str, Any]]:
    claims: list[dict[str, Any]] = json.loads((RESULTS / "numerical" / "claims.json").read_text())
    return [claim for claim in claims if claim["experiment"] == experiment]


def rows_of(experiment: str) -> list[list[str]]:
    """Returns the cells (claim, verdict, numbers) of the rows with the command of this experiment."""
    rows = []
    for line in (RESULTS / "README.md").read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("|") and cells[-1] == f"`turnout reproduce {experiment}`":
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

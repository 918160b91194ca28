"""Trace files that were made to fill the memory, or to confuse the reader, are refused with a clear error."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hostile import GIB, ZipEntry, deflate_bomb, gzip_bomb, npy, npz, run_limited, zip_file
from turnout.errors import DatasetError
from turnout.lab.worlds.traces.formats import files, readers
from turnout.lab.worlds.traces.formats.files import check_traces, read_traces


def problems_of(path: Path) -> list[str]:
    return [f"{problem.location}: {problem.description}".removeprefix(": ") for problem in check_traces(path)[1]]


def only_problem(path: Path) -> str:
    (problem,) = problems_of(path)
    with pytest.raises(DatasetError, match=r"\w"):
        read_traces(path)
    return problem


BOMBS: dict[str, tuple[Callable[[], bytes], str]] = {
    "line.csv.gz": (lambda: gzip_bomb(b","), "line 1: a row must have at most 1,048,576 characters, got more"),
    "zeros.csv.gz": (lambda: gzip_bomb(b"\0"), "line 1: a row must have at most 1,048,576 characters, got more"),
    "quotes.csv.gz": (
        lambda: gzip_bomb(b'"\n",', start=b"client,score\n"),
        "a row must have at most 1,048,576 charact",
    ),
    "rows.csv.gz": (lambda: gzip_bomb(b"1\n", start=b"client,score\n"), "the file has more than 10,000 problems"),
    "empty.csv.gz": (lambda: gzip_bomb(b"\n"), "the file is empty"),
    "blank.csv.gz": (lambda: gzip_bomb(b"\n", start=b"client,score\n"), "must have at most 20,000,000 lines, got more"),
    "array.npz": (
        lambda: zip_file([ZipEntry("score.npy", deflate_bomb(3 * GIB), 3 * GIB)]),
        "must have at most 1,024 MiB, got more",
    ),
    "lie.npz": (lambda: zip_file([ZipEntry("score.npy", deflate_bomb(6 * GIB), 1000)]), "the file is damaged"),
    "shape.npz": (
        lambda: zip_file([ZipEntry("score.npy", npy("(1000000000,)"), 128, 0)]),
        "an array of shape (1000000000,) and type float64 does not have 0 bytes",
    ),
}


#: Checks several files in one process, and prints the exit code and the output of each.
CHECKS = """
import contextlib, io, json, sys
from turnout.cli import main

for path in sys.argv[1:]:
    sys.argv, output, code = ["turnout", "traces", "describe", path], io.StringIO(), 0
    with contextlib.redirect_stdout(output):
        try:
            main()
        except SystemExit as end:
            code = end.code
    print(json.dumps([code, output.getvalue()]), flush=True)
"""


LONG = {"blank.csv.gz"}  # twenty million lines are read in 15 seconds; a test below has a smaller limit of lines


@pytest.mark.parametrize("names", [BOMBS.keys() - LONG, pytest.param(LONG, marks=pytest.mark.thorough)], ids=len)
def test_bombs_are_refused_in_one_line_with_little_memory(tmp_path: Path, names: set[str]) -> None:
    program = tmp_path / "program.py"
    program.write_text(CHECKS)
    for name in names:
        (tmp_path / name).write_bytes(BOMBS[name][0]())
        assert (tmp_path / name).stat().st_size < 1 << 25
    code, output, errors = run_limited(*(tmp_path / name for name in names), program=program)
    assert (code, errors) == (0, "")
    for name, result in zip(names, map(json.loads, output.splitlines()), strict=True):
        assert result[0] == 1, name
        assert BOMBS[name][1] in result[1], name


@pytest.mark.parametrize("number", ["9" * 5000, "9" * 400, "1e400", "-1e400", "NaN"])
def test_numbers_beyond_a_float_are_refused(tmp_path: Path, number: str) -> None:
    table = tmp_path / "a.csv"
    table.write_text(f"client,score\na,{number}\n")
    assert len(problems_of(table)) == 1


def test_a_long_state_takes_no_memory_for_other_rows(tmp_path: Path) -> None:
    """As an array of strings, each of 20,000 rows would take as much as the longest one: 8 GB."""
    path = tmp_path / "states.csv"
    rows = "".join(f"a,{second},on\n" for second in range(20_000))
    path.write_text(f"client,time,state\na,0,{'x' * 100_000}\n{rows}")
    code, output, errors = run_limited("traces", "describe", path)
    assert (code, errors) == (1, "")
    assert "line 2: state 'xxx" in output


def test_the_limits_of_text_are_those_of_the_content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = b"client,score\na,1\nb,2\n"
    plain, packed = tmp_path / "a.csv", tmp_path / "a.csv.gz"
    plain.write_bytes(text)
    packed.write_bytes(gzip.compress(text))
    monkeypatch.setattr(readers, "MAX_TEXT_BYTES", len(text))
    assert problems_of(plain) == problems_of(packed) == []
    monkeypatch.setattr(readers, "MAX_TEXT_BYTES", len(text) - 1)
    assert "must have at most 20 bytes, got more" in only_problem(plain)
    assert "must have at most 20 bytes, got more" in only_problem(packed)
    monkeypatch.undo()
    monkeypatch.setattr(readers, "MAX_LINES", 2)
    assert "a file must have at most 2 lines, got more" in only_problem(plain)
    monkeypatch.undo()
    monkeypatch.setattr(readers, "MAX_CELLS", 4)
    assert problems_of(plain) == []
    monkeypatch.setattr(readers, "MAX_CELLS", 3)
    assert "a CSV file must have at most 3 cells, got more: remove other columns" in only_problem(plain)
    monkeypatch.undo()
    plain.write_text(",".join(map(str, range(1001))))
    assert "at most 1,000 columns, got 1,001" in only_problem(plain)


def test_the_number_of_problems_is_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.csv"
    path.write_text("client,score\n" + "a,-1\n" * 6)
    assert len(problems_of(path)) == 6
    monkeypatch.setattr(files, "MAX_PROBLEMS", 5)
    assert len(problems_of(path)) == 6
    assert problems_of(path)[-1] == "the file has more than 5 problems: repair these first"


def test_the_numbers_of_rows_and_clients_of_an_npz_file_are_limited(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.npz"
    arrays: dict[str, Any] = {"client": np.array(["a", "b"]), "score": np.array([1.0, 2.0])}
    path.write_bytes(npz(**arrays))
    assert problems_of(path) == []
    monkeypatch.setattr(readers, "MAX_CLIENTS", 1)
    assert "at most 1 clients, got 2: split the clients over several files" in only_problem(path)
    monkeypatch.setattr(readers, "MAX_ROWS", 1)
    assert "array client: must have at most 1 values, got 2" in only_problem(path)


def test_a_line_that_is_not_text_is_named_in_a_long_file(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(b"client,score\n" + b"".join(b"c%d,1\n" % row for row in range(5000)) + b"\xff,1\nb,2\n")
    assert only_problem(path) == "line 5002: the file is not UTF-8 text"

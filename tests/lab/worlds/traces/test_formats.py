"""Trace files of every format, and hostile ones."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hostile import GIB, ZipEntry, deflate_bomb, gzip_bomb, npy, npz, run_limited, zip_file
from narrowing import known
from turnout.errors import DatasetError, SettingError
from turnout.lab.worlds.traces.data import DAY, AvailabilityTrace, DeviceTrace, LinkTrace, Traces, merge_intervals
from turnout.lab.worlds.traces.formats import files, readers
from turnout.lab.worlds.traces.formats.files import check_traces, read_traces, write_traces
from turnout.lab.worlds.traces.formats.tables import TraceLayout
from turnout.lab.worlds.traces.population import Generator

INTERVALS = "client,start,stop,end\na,0,10,100\nb,20,30.5,200\na,40,50,100\n"
STATES = "client,time,state\na,0,on\na,10,off\nb,5,1\nb,7,0\na,40,true\n"
DEVICES = "client,seconds_per_sample\na,0.05\nb,0.1\n"
LINKS = "client,down_mbps,up_mbps\na,10,2\nb,1.5,0.5\n"
SERIES = "client,time,down_mbps\na,0,1\na,10,2\na,30,0\nb,5,7\n"


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str, str | bytes], Path]:
    def write_file(name: str, text: str | bytes) -> Path:
        path = tmp_path / name
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    return write_file


Write = Callable[[str, str | bytes], Path]


def intervals(trace: AvailabilityTrace | None) -> dict[str, list[tuple[float, float]]]:
    assert trace is not None
    pairs = list(zip(trace.starts.tolist(), trace.stops.tolist(), strict=True))
    return {client: pairs[trace.ptr[row] : trace.ptr[row + 1]] for row, client in enumerate(trace.ids)}


def series(trace: LinkTrace | None) -> dict[str, list[tuple[float, float, float]]]:
    assert trace is not None
    rows = list(zip(trace.times.tolist(), trace.down.tolist(), trace.up.tolist(), strict=True))
    return {client: rows[trace.ptr[row] : trace.ptr[row + 1]] for row, client in enumerate(trace.ids)}


def problems(path: Path, layout: TraceLayout | None = None) -> list[str]:
    return [str(problem).removeprefix(str(path)).lstrip(",: ") for problem in check_traces(path, layout=layout)[1]]


# Formats.


def test_intervals_in_csv(write: Write) -> None:
    trace = read_traces(write("a.csv", INTERVALS)).availability
    assert intervals(trace) == {"a": [(0, 10), (40, 50)], "b": [(20, 30.5)]}
    assert trace is not None
    assert trace.ends.tolist() == [100, 200]
    np.testing.assert_allclose(trace.shares, [0.2, 10.5 / 200])


def test_states_hold_until_the_next_and_the_last_until_the_end(write: Write) -> None:
    trace = read_traces(write("a.csv", STATES)).availability
    assert intervals(trace) == {
        "a": [(0, 10)],
        "b": [(5, 7)],
    }  # the file ends at 40, when client a becomes available again
    trace = read_traces(write("a.csv", STATES), layout=TraceLayout(end=60)).availability
    assert intervals(trace) == {"a": [(0, 10), (40, 60)], "b": [(5, 7)]}


def test_devices_by_seconds_and_by_score(write: Write) -> None:
    devices = known(read_traces(write("a.csv", DEVICES)).devices)
    assert devices.seconds_per_sample.tolist() == [0.05, 0.1]
    scored = known(read_traces(write("b.csv", "client,score\na,100\nb,200\nc,400\n")).devices)
    np.testing.assert_allclose(scored.seconds_per_sample, [0.156, 0.078, 0.039])


def test_links_constant_with_deviation_and_as_series(write: Write) -> None:
    assert series(read_traces(write("a.csv", LINKS)).links) == {"a": [(0, 10, 2)], "b": [(0, 1.5, 0.5)]}
    text = "client,down_kbps,up_kbps,down_deviation_kbps,up_deviation_kbps\na,10000,2000,500,0\n"
    links = known(read_traces(write("b.csv", text)).links)
    assert (links.down.tolist(), links.down_deviations.tolist(), links.up_deviations.tolist()) == ([10], [0.5], [0])
    links = known(read_traces(write("c.csv", SERIES)).links)
    assert series(links) == {"a": [(0, 1, 1), (10, 2, 2), (30, 0, 0)], "b": [(5, 7, 7)]}
    # The last step is as long as the previous one; the length of a constant does not matter.
    assert links.ends.tolist() == [50, 6]
    np.testing.assert_allclose(links.means(links.down), [(10 + 40) / 50, 7])


def test_npz_with_plain_names_describes_one_part(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    np.savez(path, two_t=[0, 5, 7, 7, 20], two_state=[2, 0, 2, 0, 2], two_ptr=[0, 2, 4, 5], other=[1.0])
    layout = TraceLayout({"time": "two_t", "state": "two_state", "ptr": "two_ptr"}, on=("2",), end=30)
    result = intervals(read_traces(path, layout=layout).availability)
    assert result == {"client-0": [(0, 5)], "client-1": [], "client-2": [(20, 30)]}
    dropped = TraceLayout(layout.columns, layout.on, drop_before=3, end=25)
    assert intervals(read_traces(path, layout=dropped).availability)["client-0"] == [(3, 5)]
    assert intervals(read_traces(path, layout=dropped).availability)["client-2"] == [(20, 25)]


@pytest.mark.parametrize(
    "rows", [{"start": [1.0, 4.0], "stop": [2.0, 5.0]}, {"time": [1.0, 4.0], "state": ["on", "off"]}], ids=sorted
)
def test_a_client_without_rows_keeps_its_record_in_npz(tmp_path: Path, rows: dict[str, Any]) -> None:
    np.savez(tmp_path / "a.npz", client=["a", "b", "c"], ptr=[0, 0, 2, 2], end=[10.0, 20.0, 30.0], **rows)
    trace = known(read_traces(tmp_path / "a.npz").availability)
    assert (trace.ids, trace.ends.tolist()) == (("a", "b", "c"), [10, 20, 30])
    assert [len(own) for own in intervals(trace).values()] == [0, 1 if "time" in rows else 2, 0]


# Rules.


def test_intervals_are_sorted_merged_and_may_be_empty(write: Write) -> None:
    text = "client,start,stop\nb,5,6\na,40,50\na,0,10\na,8,20\na,9,11\na,20,25\na,7,7\n"
    assert intervals(read_traces(write("a.csv", text)).availability) == {"b": [(5, 6)], "a": [(0, 25), (40, 50)]}
    result = intervals(read_traces(write("a.csv", "client,start,stop\na,0,0\nb,3,4\n")).availability)
    assert result == {"a": [], "b": [(3, 4)]}
    result = intervals(
        read_traces(write("a.csv", "client,time,state\na,0,1\na,0,0\na,5,0\na,5,1\na,9,0\n")).availability
    )
    assert result == {"a": [(5, 9)]}
    text = "client,time,down_mbps\na,5,1\na,0,3\na,5,2\n"
    assert series(read_traces(write("b.csv", text)).links) == {"a": [(0, 3, 3), (5, 2, 2)]}


@pytest.mark.parametrize(("latest", "end"), [(5000, 5000), (DAY, DAY), (DAY + 1, 2 * DAY), (536263, 7 * DAY)])
def test_without_an_end_records_last_until_the_latest_moment_or_the_end_of_its_day(
    write: Write, latest: float, end: float
) -> None:
    trace = known(read_traces(write("a.csv", f"client,start,stop\na,0,{latest}\nb,1,2\n")).availability)
    assert trace.ends.tolist() == [end, end]


def test_generated_ids_of_different_parts_never_match(write: Write, tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", start=[0], stop=[1], ptr=[0, 1])
    traces = read_traces(tmp_path / "a.npz", write("b.csv", "score\n7\n8\n"), write("c.csv", "down_mbps\n3\n"))
    assert [part.ids for part in traces.parts.values()] == [("client-0",), ("device-0", "device-1"), ("link-0",)]


def test_byte_order_marks_blank_lines_and_spaces_are_ignored(write: Write) -> None:
    text = "\ufeffclient , score\r\n a , 7 \r\n\r\n b,8\r\n"
    devices = known(read_traces(write("a.csv", text)).devices)
    assert (devices.ids, devices.values.tolist()) == (("a", "b"), [7, 8])


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, 3), st.integers(0, 30), st.integers(0, 8)).map(
            lambda row: (row[0], float(row[1]), float(row[1] + row[2]))
        ),
        max_size=25,
    )
)
def test_merging_covers_the_same_seconds(rows: list[tuple[int, float, float]]) -> None:
    owner = np.array([row[0] for row in rows], dtype=np.int64)
    starts, stops = (np.array([row[index] for row in rows], dtype=np.float64) for index in (1, 2))
    ptr, first, last = merge_intervals(owner, starts, stops, 4)
    for client in range(4):
        covered = {second for client_of_row, a, b in rows if client_of_row == client for second in np.arange(a, b)}
        own_rows = slice(ptr[client], ptr[client + 1])
        restored = [second for a, b in zip(first[own_rows], last[own_rows], strict=True) for second in np.arange(a, b)]
        assert sorted(covered) == restored
        assert (first[own_rows][1:] > last[own_rows][:-1]).all()


# Round trips.


def test_written_traces_are_read_back_unchanged(tmp_path: Path) -> None:
    traces = Generator(days=1).traces(7, seed=3)
    write_traces(traces, tmp_path / "all.npz")
    assert read_traces(tmp_path / "all.npz").fingerprint == traces.fingerprint
    assert list(tmp_path.iterdir()) == [tmp_path / "all.npz"]


@pytest.mark.parametrize("name", ["a.csv", "a.csv.gz", "a.npz"])
@pytest.mark.parametrize(
    "text", [INTERVALS, STATES, DEVICES, "client,score\nx,7\n", LINKS, SERIES, "client,start,stop\na,0,0\nb,1,2\n"]
)
def test_each_part_survives_each_format(write: Write, tmp_path: Path, name: str, text: str) -> None:
    traces = read_traces(write("given.csv", text))
    write_traces(traces, tmp_path / name)
    assert read_traces(tmp_path / name).fingerprint == traces.fingerprint
    if name.endswith(".gz"):
        assert gzip.decompress((tmp_path / name).read_bytes()).startswith(b"client,")


def test_what_cannot_be_written_is_reported(tmp_path: Path) -> None:
    traces = Generator(days=1).traces(2)
    with pytest.raises(SettingError, match="a CSV file holds one part, but there are availability, devices, links"):
        write_traces(traces, tmp_path / "a.csv")
    with pytest.raises(SettingError, match="nothing to write"):
        write_traces(Traces(), tmp_path / "a.npz")
    assert not list(tmp_path.iterdir())
    with pytest.raises(SettingError, match="cannot write"):
        write_traces(Traces(devices=DeviceTrace(("a",), np.ones(1))), tmp_path / "nowhere" / "a.npz")


# Rejected files, with the location of the problem.


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "the file is empty"),
        ("client,score\n", "the file holds no clients"),
        ("client,colour\na,red\n", "line 1: the columns client, colour describe no trace: start and stop"),
        ("start,stop\n0,1\n", "line 1: the column 'client' is missing"),
        ("client,score,score\na,1,2\n", "line 1: the column 'score' occurs twice"),
        ("client,score\na,1\nb\n", "line 3: the row has 1 cells, but the header has 2"),
        ("client,score\n,1\n", "line 2: client is missing"),
        ("client,score\na,1\nb,2\n\na,3\n", "line 5: client 'a' is already defined (line 2): define each client once"),
        ("client,score\na,fast\n", "line 2: score must be a number above 0, and at most 1e+09, not 'fast'"),
        ("client,score\na,1\nb,\n", "line 3: score must be a number above 0, and at most 1e+09, not missing"),
        ("client,seconds_per_sample\na,0\n", "line 2: seconds_per_sample must be a number above 0"),
        ("client,seconds_per_sample\na,nan\n", "line 2: seconds_per_sample must be a number above 0"),
        ("client,seconds_per_sample,score\na,1,1\n", "line 2: score and seconds_per_sample exclude each other"),
        ("client,start,stop\na,5,9\na,-1,2\n", "line 3: start must be a number, not negative, and at most 1e+09"),
        ("client,start,stop\na,5,inf\n", "line 2: stop must be a number, not negative, and at most 1e+09, not 'inf'"),
        ("client,start,stop\na,9,5\n", "line 2: stop 5 lies before start 9"),
        (
            "client,start,stop,end\na,1,2,9\na,3,9.5,9\n",
            "line 3: stop 9.5 lies after 9, the end of its client's record",
        ),
        ("client,start,stop,end\na,1,2,9\na,3,4,8\n", "line 3: end of client 'a' is 8 here and 9 before"),
        ("client,start,stop,end\na,1,2,0\n", "line 2: end must be a number above 0"),
        ("client,time,state\na,1,2\n", "line 2: state '2' is not known: write 1, on, true or 0, off, false, or list"),
        ("client,time,state\na,x,on\n", "line 2: time must be a number, not negative, and at most 1e+09, not 'x'"),
        ("client,down_mbps\na,-3\n", "line 2: down_mbps must be a number, not negative"),
        ("client,down_mbps\na,0\n", "line 2: client 'a' has 0 Mbps down on average: at least 0.001 is expected"),
        ("client,down_mbps,up_mbps\na,1,0.0001\n", "line 2: client 'a' has 0.0001 Mbps up on average"),
        ("client,down_mbps\na,1\na,2\n", "line 3: client 'a' is already defined (line 2)"),
        ("client,time,down_mbps\na,0,0\na,9,0\n", "line 2: client 'a' has 0 Mbps down on average"),
        ("client,time,down_mbps,end\na,0,1,5\na,9,1,5\n", "line 3: time 9 must lie before 5, the end of its series"),
        (
            "client,time,down_mbps,down_deviation_mbps\na,0,1,0\na,9,1,2\n",
            "line 3: client 'a' has a series and a deviation: a deviation is for constants only",
        ),
        (
            "client,down_mbps,down_deviation_mbps\na,1,11\n",
            "line 2: the down deviation of client 'a' is more than 10 times its mean",
        ),
        ("client,score\na,1\n\xff", "line 3: the row has 1 cells"),
    ],
)
def test_invalid_csv_is_rejected_with_its_line(write: Write, text: str, expected: str) -> None:
    path = write("bad.csv", text)
    assert problems(path)[0].startswith(expected)
    with pytest.raises(DatasetError, match=r"bad\.csv"):
        read_traces(path)


def test_every_problem_is_listed_and_the_first_is_raised(write: Write) -> None:
    path = write("bad.csv", "client,start,stop\na,5,4\nb,1,2\nc,x,9\nd,-1,2\n")
    assert [problem.split(":")[0] for problem in problems(path)] == ["line 2", "line 4", "line 5"]
    traces, _ = check_traces(path)
    assert intervals(traces.availability)["b"] == [(1, 2)]
    with pytest.raises(DatasetError, match=r"bad\.csv, line 2: .* \(2 more: check_traces returns all\)"):
        read_traces(path)
    assert problems(write("bad.csv", b"client,score\na,1\n\xff\xfe,2\n")) == ["line 3: the file is not UTF-8 text"]


@pytest.mark.parametrize(
    ("arrays", "expected"),
    [
        ({}, "the arrays (none) describe no trace"),
        ({"score": [[1.0]]}, "array score: must be a list of numbers or strings"),
        ({"start": [0], "stop": [1]}, "the array 'ptr' is missing"),
        ({"start": [0], "stop": [1], "ptr": [0, 2]}, "array ptr: must increase from 0 to 1"),
        (
            {"start": [0], "stop": [1], "ptr": [0.0, 1.0]},
            "array ptr: must be a list of numbers or strings, not float64",
        ),
        ({"start": [0], "stop": [1, 2], "ptr": [0, 1]}, "array stop: has 2 values, but there are 1 rows"),
        ({"start": [0, 5], "stop": [1, 4], "ptr": [0, 1, 2]}, "row 1: stop 4 lies before start 5"),
        ({"score": [1, 2], "client": ["a", "a"]}, "client[1]: client 'a' is already defined (client[0])"),
        ({"score": [1, 2], "client": ["a", ""]}, "client[1]: client is missing"),
        ({"score": [1, 2], "client": ["a"]}, "array client: has 1 ids, but there are 2 clients"),
        ({"score": [1, np.nan]}, "row 1: score must be a number above 0"),
        ({"links.score": [1]}, "links: the arrays score describe no trace"),
        ({"time": [0], "down_mbps": [1], "ptr": [0, 1, 1]}, "client 'link-1': has no rows: omit it"),
    ],
)
def test_invalid_npz_is_rejected_with_its_location(tmp_path: Path, arrays: dict[str, Any], expected: str) -> None:
    np.savez(tmp_path / "bad.npz", **arrays)
    assert problems(tmp_path / "bad.npz")[0].startswith(expected)


def test_files_that_are_not_npz_are_reported_and_pickles_never_read(write: Write, tmp_path: Path) -> None:
    assert "pickles are never read" in problems(write("bad.npz", "hello"))[0]
    np.save(tmp_path / "one.npy", np.ones(1))
    (tmp_path / "one.npy").rename(tmp_path / "one.npz")
    assert problems(tmp_path / "one.npz") == ["the file is a single array, not an npz file"]
    np.savez(tmp_path / "cut.npz", score=np.ones(1000))
    write("cut.npz", (tmp_path / "cut.npz").read_bytes()[:500])
    assert "damaged" in problems(tmp_path / "cut.npz")[0]
    np.savez(tmp_path / "bad.npz", score=np.array([{"a": 1}], dtype=object))
    assert "pickles are never read" in problems(tmp_path / "bad.npz")[0]


def test_missing_files_and_unknown_formats_are_reported(write: Write, tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match="there is no file"):
        read_traces(tmp_path / "none.csv")
    with pytest.raises(DatasetError, match="cannot read"):
        read_traces(write("a.csv.gz", "not packed"))
    with pytest.raises(SettingError, match=r"the name of a trace file must end in \.csv"):
        read_traces(tmp_path / "a.pkl")
    with pytest.raises(SettingError, match="no trace file was given"):
        read_traces()
    with pytest.raises(DatasetError, match="devices occurs in two files"):
        read_traces(write("a.csv", DEVICES), write("b.csv", DEVICES))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda packed: b"no" + packed[2:], "Not a gzipped file"),
        (lambda packed: packed[: len(packed) // 2], "Compressed file ended before the end-of-stream marker"),
        (lambda packed: packed[:-8] + bytes(8), "CRC check failed"),
        (lambda packed: packed[:10] + b"\xff" * 20 + packed[30:], "the file is damaged: .* invalid block type"),
        (lambda _: gzip.compress(b"client,score\n\xff,1"), "the file is not UTF-8 text"),
    ],
)
def test_damaged_compressed_files_are_reported(write: Write, damage: Callable[[bytes], bytes], message: str) -> None:
    lines = b"client,score\n" + b"\n".join(b"c%d,%d" % (number, number * 37 % 1000 + 1) for number in range(2000))
    with pytest.raises(DatasetError, match=message):
        read_traces(write("a.csv.gz", damage(gzip.compress(lines))))


def test_a_layout_must_name_existing_columns(write: Write) -> None:
    with pytest.raises(SettingError, match="there is no column 'speed'; there are client, start"):
        TraceLayout({"speed": "x"})
    with pytest.raises(SettingError, match="end must be above 600"):
        TraceLayout(drop_before=600, end=600)
    path = write("a.csv", "Model,CPU\nx,5\n")
    assert problems(path, TraceLayout({"score": "GPU"})) == [
        "the file has no 'GPU', which the layout names for 'score'; it has Model, CPU"
    ]
    devices = known(read_traces(path, layout=TraceLayout({"score": "CPU", "client": "Model"})).devices)
    assert devices.ids == ("x",)


def only_problem(path: Path) -> str:
    (problem,) = problems(path)
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
    assert len(problems(table)) == 1


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
    assert problems(plain) == problems(packed) == []
    monkeypatch.setattr(readers, "MAX_TEXT_BYTES", len(text) - 1)
    assert "must have at most 20 bytes, got more" in only_problem(plain)
    assert "must have at most 20 bytes, got more" in only_problem(packed)
    monkeypatch.undo()
    monkeypatch.setattr(readers, "MAX_LINES", 2)
    assert "a file must have at most 2 lines, got more" in only_problem(plain)
    monkeypatch.undo()
    monkeypatch.setattr(readers, "MAX_CELLS", 4)
    assert problems(plain) == []
    monkeypatch.setattr(readers, "MAX_CELLS", 3)
    assert "a CSV file must have at most 3 cells, got more: remove other columns" in only_problem(plain)
    monkeypatch.undo()
    plain.write_text(",".join(map(str, range(1001))))
    assert "at most 1,000 columns, got 1,001" in only_problem(plain)


def test_the_number_of_problems_is_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.csv"
    path.write_text("client,score\n" + "a,-1\n" * 6)
    assert len(problems(path)) == 6
    monkeypatch.setattr(files, "MAX_PROBLEMS", 5)
    assert len(problems(path)) == 6
    assert problems(path)[-1] == "the file has more than 5 problems: repair these first"


def test_the_numbers_of_rows_and_clients_of_an_npz_file_are_limited(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.npz"
    arrays: dict[str, Any] = {"client": np.array(["a", "b"]), "score": np.array([1.0, 2.0])}
    path.write_bytes(npz(**arrays))
    assert problems(path) == []
    monkeypatch.setattr(readers, "MAX_CLIENTS", 1)
    assert "at most 1 clients, got 2: split the clients over several files" in only_problem(path)
    monkeypatch.setattr(readers, "MAX_ROWS", 1)
    assert "array client: must have at most 1 values, got 2" in only_problem(path)


def test_a_line_that_is_not_text_is_named_in_a_long_file(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(b"client,score\n" + b"".join(b"c%d,1\n" % row for row in range(5000)) + b"\xff,1\nb,2\n")
    assert only_problem(path) == "line 5002: the file is not UTF-8 text"

"""`turnout data` and `turnout traces`."""

from __future__ import annotations

import gzip
import hashlib
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from cli import in_process
from cli.in_process import error_of, output_of, run
from lab.training.test_files import Server, server
from turnout.lab.training.datasets import SOURCES, DataFile, Files
from turnout.lab.worlds.traces.formats.files import read_traces, write_traces
from turnout.lab.worlds.traces.population import Generator

__all__ = ["server"]
DEBIAN = Path("/usr/share/datasets/fashion-mnist")
FASHION = [f"{part}-{kind}-ubyte" for part in ("train", "t10k") for kind in ("images-idx3", "labels-idx1")]


def run_data(*arguments: str, data: Path) -> in_process.Done:
    """Runs `turnout data` with this data folder."""
    return in_process.run("data", *arguments, TURNOUT_DATA=str(data), no_proxy="*", COLUMNS="400")


def error_of_data(*arguments: str, data: Path) -> str:
    return in_process.error_of("data", *arguments, TURNOUT_DATA=str(data), no_proxy="*")


def test_the_list_has_every_dataset_and_its_folder(tmp_path: Path) -> None:
    (tmp_path / "cifar-10").mkdir()
    (tmp_path / "cifar-10" / "test_batch.bin").write_bytes(b"")
    fashion = str(DEBIAN) if DEBIAN.is_dir() else "missing: turnout data fetch fashion-mnist"
    for data, cifar in ((tmp_path, str(tmp_path / "cifar-10")), (tmp_path / "none", "turnout data fetch cifar-10")):
        shown = run_data("list", data=data).stdout
        for text in ("digits", "CC BY 4.0", "with the package", "CIFAR-10", fashion, cifar):
            assert text in shown


def test_a_complete_dataset_is_verified_and_not_downloaded(tmp_path: Path) -> None:
    assert "did you mean 'digits'?" in error_of_data("fetch", "digit", data=tmp_path)
    shown = run_data("fetch", "digits", data=tmp_path).stdout
    assert shown == "digits is complete, with the package: 1,437 training and 360 test images\n"


def test_a_dataset_is_downloaded_from_another_url_into_a_folder(
    tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.files = {"apples.gz": gzip.compress(b"red and green")}
    files = Files("fruit", (DataFile("apples", hashlib.sha256(b"red and green").hexdigest()),), "http://fruit.invalid/")
    content = SOURCES["digits"].parse({})
    fruit = replace(SOURCES["digits"], name="fruit", files=files, parse=lambda _: content)
    monkeypatch.setattr("turnout.lab.training.datasets.SOURCES", {"fruit": fruit})
    target = tmp_path / "basket"
    target.mkdir()
    (target / "apples").write_bytes(b"damaged")
    arguments = ("fetch", "fruit", "--address", server.address, "--folder", str(target))
    message = f"fruit is complete, in {target}: 1,437 training and 360 test images\n"
    assert run_data(*arguments, data=tmp_path) == (message, "", 0)
    assert [path.name for path in target.iterdir()] == ["apples"]
    assert (target / "apples").read_bytes() == b"red and green"
    server.files.clear()
    assert run_data(*arguments, data=tmp_path).stdout == message


def test_a_failed_download_prints_one_line_and_leaves_no_file(tmp_path: Path, server: Server) -> None:
    target = tmp_path / "target"
    arguments = ("fetch", "fashion-mnist", "--folder", str(target), "--address")
    assert "Not Found" in error_of_data(*arguments, server.address, data=tmp_path)
    server.files = {f"{name}.gz": gzip.compress(b"something else") for name in FASHION}
    assert "it was not kept" in error_of_data(*arguments, server.address, data=tmp_path)
    assert "is not a web address" in error_of_data(*arguments, f"file://{tmp_path}/", data=tmp_path)
    assert "cannot download" in error_of_data(*arguments, "http://127.0.0.1:port", data=tmp_path)
    assert list(target.iterdir()) == []


@pytest.fixture
def generated(tmp_path: Path) -> Path:
    write_traces(Generator().traces(30, 1), tmp_path / "fleet.npz")
    return tmp_path / "fleet.npz"


def test_describe_prints_a_summary(generated: Path) -> None:
    done = run("traces", "describe", generated)
    assert done.returncode == 0
    for text in (
        "availability: 30 clients, 7 days",
        "by hour of the day  ",
        "devices: 30, mean seconds_per_sample 0.0",
        "links: 30: 0 constant, 30 mean and deviation, 0 series",
        "share of time",
        "down, Mbps",
        "A world of these files: availability recorded, devices by id, links by id.",
        f"fingerprint {read_traces(generated).fingerprint}",
    ):
        assert text in done.stdout
    assert "modelling assumption" not in done.stdout


def test_describe_prints_the_assumptions_and_nothing_about_parts_that_are_not_there(
    tmp_path: Path, generated: Path
) -> None:
    (tmp_path / "scores.csv").write_text("score\n5\n7\n")
    shown = output_of("traces", "describe", tmp_path / "scores.csv")
    assert "devices: 2, mean score 6" in shown
    assert "availability:" not in shown
    assert "share of time" not in shown
    (tmp_path / "series.csv").write_text("client,time,down_mbps\na,0,1\na,1800,0\n")
    part = tmp_path / "availability.csv"
    assert run("traces", "convert", generated, "--part", "availability", "--to", part).returncode == 0
    done = run("traces", "describe", part, tmp_path / "scores.csv", tmp_path / "series.csv")
    assert "devices drawn, links drawn" in done.stdout
    assert "modelling assumption" in done.stdout
    assert "1 series of 1.0 h in total, 50.00% of the time at zero" in done.stdout


def test_describe_prints_json(generated: Path) -> None:
    result = json.loads(run("traces", "describe", generated, "--json").stdout)
    assert result["availability"]["clients"] == result["devices"]["devices"] == result["links"]["links"] == 30
    assert len(result["availability"]["by_hour"]) == 24
    assert list(result["links"]["down_mbps"]) == ["0", "0.05", "0.25", "0.5", "0.75", "0.95", "1"]
    assert result["joined"]["devices"] == "by id"


def test_a_record_shorter_than_a_day_has_no_values_for_the_other_hours(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("client,start,stop\na,0,3600\n")
    result = json.loads(run("traces", "describe", tmp_path / "a.csv", "--json").stdout)
    assert result["availability"]["by_hour"] == [1.0] + [None] * 23
    assert "100.0% to 100.0%" in run("traces", "describe", tmp_path / "a.csv").stdout


def test_convert_preserves_traces_through_all_formats(tmp_path: Path, generated: Path) -> None:
    done = run("traces", "convert", generated, "--to", tmp_path / "a.npz")
    assert done.stdout == f"{tmp_path / 'a.npz'}: availability of 30, devices of 30, links of 30\n"
    parts = []
    for part in ("availability", "devices", "links"):
        parts.append(tmp_path / f"{part}.csv")
        assert run("traces", "convert", tmp_path / "a.npz", "--part", part, "--to", parts[-1]).returncode == 0
    assert run("traces", "convert", *parts, "--to", tmp_path / "b.npz").returncode == 0
    assert read_traces(tmp_path / "b.npz").fingerprint == read_traces(generated).fingerprint


def test_convert_reads_files_of_another_layout(tmp_path: Path) -> None:
    np.savez(tmp_path / "phones.npz", two_t=[0, 300, 900, 950], two_state=[2, 0, 2, 0], two_ptr=[0, 4])
    columns = [f"--column={ours}=two_{theirs}" for ours, theirs in (("time", "t"), ("state", "state"), ("ptr", "ptr"))]
    rest = ("--on", "2", "--drop-before", "600", "--end", "1000", "--to", tmp_path / "a.csv")
    assert run("traces", "convert", tmp_path / "phones.npz", *columns, *rest).returncode == 0
    assert (tmp_path / "a.csv").read_text() == "client,start,stop,end\nclient-0,900,950,1000\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "a.csv, line 3: down_mbps must be a number"),
        (("--column", "score"), "write --column as OURS=THEIRS"),
        (("--column", "speed=x"), "there is no column 'speed'"),
        (("--part", "devices"), "these files hold no devices, only links"),
        (("--end", "0"), "end must be above 0"),
    ],
)
def test_a_failed_conversion_leaves_the_old_file(tmp_path: Path, arguments: tuple[str, ...], message: str) -> None:
    (tmp_path / "a.csv").write_text("down_mbps\n5\n" if arguments else "down_mbps\n5\n-1\n")
    (tmp_path / "b.csv").write_bytes(b"old")
    assert message in error_of("traces", "convert", tmp_path / "a.csv", "--to", tmp_path / "b.csv", *arguments)
    assert (tmp_path / "b.csv").read_bytes() == b"old"


def test_every_problem_is_listed_with_its_file_and_line_instead_of_the_summary(tmp_path: Path, generated: Path) -> None:
    bad = tmp_path / "bad.csv"
    bad.write_text("client,start,stop\na,5,4\nb,1,2\nc,x,9\n")
    done = run("traces", "describe", generated, bad, tmp_path / "none.csv")
    assert done.returncode == 1
    assert done.stdout.splitlines() == [
        f"{bad}, line 2: stop 4 lies before start 5",
        f"{bad}, line 4: start must be a number, not negative, and at most 1e+09, not 'x'",
        f"there is no file {tmp_path / 'none.csv'}",
    ]
    result = json.loads(run("traces", "describe", bad, "--json").stdout)
    assert [(one["file"], one["place"]) for one in result["problems"]] == [(str(bad), "line 2"), (str(bad), "line 4")]
    assert json.loads(run("traces", "describe", generated, "--json").stdout)["problems"] == []


def test_recorded_clients_are_simulated(generated: Path) -> None:
    world = ("--world", "name=traces", "--world", f"traces={generated}", "--world", "deadline=500")
    done = run("simulate", "rbcsf", "random", *world, "--set", "accrual=available", "--rounds", "15", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["rounds"] == 15

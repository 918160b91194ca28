"""Hostile settings, configuration files and datasets end with one line on standard error, and little memory."""

from __future__ import annotations

import gzip
import io
import tarfile
from pathlib import Path

import pytest

from cli.in_process import run
from hostile import GIB, gzip_bomb, one_line_error
from turnout.errors import DatasetError
from turnout.lab.training import datasets

CONFIGS = {
    "[" * 50_000: "is not valid TOML",
    "x = " + "[" * 50_000: "nested at most 50 deep",
    "world." + "a." * 3000 + "a = 1": "nested at most 50 deep",
    "world = " + "{a=" * 100 + "1" + "}" * 100: "nested at most 50 deep",
    "rounds = " + "9" * 5000: "integer string conversion",
    "rounds = " + "9" * 400: "rounds must be at most 9223372036854775807, not a number of 1329 bits",
    "seeds = " + "9" * 400: "seeds must be at most 100000",
    "[world]\nclients = " + "9" * 400: "clients must be at most 100000000",
    "[world]\nname = 5": "the name of the [world] must be a string",
    "[[policy]]\nname = 5": "needs a name",
    "[[policy]]\nname = 'rbcsf'\nlabel = 5": "the label of [[policy]] table 1 must be a string",
    "[[policy]]\nname = 'rbcsf'\nspeed_weight = " + "9" * 400: "speed_weight must be at most 1.79769e+308",
    "[[policy]]\nname = 'rbcsf'\nguaranteed_rate = '1e999999999'": "guaranteed_rate must be a number or a fraction",
    "[[policy]]\nname = 'rbcsf'\nguaranteed_rate = '1e-999999999'\ncohort_size = 0": "cohort_size must be at least 1",
    "#" * (5 << 20): "must have at most 4 MiB, got more",
}


@pytest.mark.parametrize("text", CONFIGS, ids=lambda text: text[:30].replace("\n", " "))
def test_a_hostile_configuration_is_refused_in_one_line(tmp_path: Path, text: str) -> None:
    path = tmp_path / "config.toml"
    path.write_text(text)
    output, errors, code = run("simulate", "--config", path)
    assert (output, code) == ("", 2), errors
    assert errors.startswith("error: ")
    assert errors.count("\n") == 1
    assert CONFIGS[text] in errors


def test_a_hostile_setting_is_refused_in_one_line() -> None:
    def command(value: str) -> tuple[str, ...]:
        return "simulate", "random", "--rounds", "2", "--set", f"cohort_size={value}"

    refused = "the value of cohort_size is not valid"
    assert refused in one_line_error(*command("[" * 20_000))
    for value in ("9" * 5000, "{a=" * 500 + "1" + "}" * 500):
        output, errors, code = run(*command(value))
        assert (output, code, errors.count("\n")) == ("", 2, 1)
        assert refused in errors


@pytest.mark.thorough
def test_too_little_memory_is_reported_in_one_line() -> None:
    error = one_line_error("simulate", "random", "--rounds", 2, "--world", "clients=100000000")
    assert "this needs more memory than there is" in error


@pytest.mark.thorough
def test_a_dataset_that_is_a_bomb_is_refused_with_little_memory(tmp_path: Path) -> None:
    folder = tmp_path / "fashion-mnist"
    folder.mkdir()
    (folder / "train-images-idx3-ubyte.gz").write_bytes(gzip_bomb(b"\0"))
    world = ("--world", "name=training", "--world", "dataset=fashion-mnist", "--world", f"folder={folder}")
    assert "must have at most 512 MiB, got more" in one_line_error("simulate", "random", *world)


def test_an_archive_with_hostile_headers_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = tarfile.TarInfo("data_batch_1.bin")
    entry.type, entry.size = tarfile.XHDTYPE, 8 * GIB  # its reader takes this size for granted
    headers = entry.tobuf(tarfile.GNU_FORMAT)
    longname = tarfile.TarInfo("x")
    longname.type, longname.size = tarfile.GNUTYPE_LONGNAME, 1
    nested = (longname.tobuf(tarfile.GNU_FORMAT) + bytes(512)) * 2000
    for archive in (headers, nested, b"", bytes(100_000)):
        with pytest.raises(DatasetError, match=r"nothing was kept"):
            datasets._extract_members(gzip.compress(archive), ["data_batch_1.bin"], "http://example/")
    monkeypatch.setattr(datasets, "MAX_BYTES", 10_000)
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w:gz") as made:
        made.addfile(tarfile.TarInfo("a"), None)
    with pytest.raises(DatasetError, match=r"must have at most 10,000 bytes"):
        datasets._extract_members(content.getvalue(), ["a"], "http://example/")

"""Damaged and hostile bytes are refused with a clear error, and take little memory."""

from __future__ import annotations

import gzip
import io
import random
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hostile import ZipEntry, deflate_bomb, npy, npz, run_limited, zip_file
from turnout.errors import StoreError
from turnout.storage.encoding import limits
from turnout.storage.encoding.packing import parse_stored
from turnout.storage.training_log import TrainingLog, read_model

KIB = 1 << 10


def test_content_is_read_up_to_its_limit(tmp_path: Path) -> None:
    plain, packed = tmp_path / "plain", tmp_path / "packed.gz"
    plain.write_bytes(bytes(200 * KIB))
    packed.write_bytes(gzip.compress(bytes(200 * KIB)))
    for path in (plain, packed):
        assert limits.read_file(path, 200 * KIB) == bytes(200 * KIB)
        with pytest.raises(ValueError, match=r"must have at most 204,799 bytes, got more: split it"):
            limits.read_file(path, 200 * KIB - 1)
    assert limits.inflate(zlib.compress(bytes(1000)), 1000) == bytes(1000)
    with pytest.raises(ValueError, match="must have at most 999 bytes"):
        limits.inflate(zlib.compress(bytes(1000)), 999)
    for damaged in (b"", b"no", zlib.compress(bytes(1000))[:-2]):
        with pytest.raises(ValueError, match=r"the compressed data is (damaged|truncated)"):
            limits.inflate(damaged, 1000)
    reader = limits.BoundedReader(io.BytesIO(bytes(10)), 9)
    with pytest.raises(ValueError, match="at most 9 bytes"):
        reader.readall()


def test_an_endless_file_is_refused() -> None:
    with pytest.raises(ValueError, match="must have at most 1 MiB"):
        limits.read_file(Path("/dev/zero"), 1 << 20)


@pytest.mark.parametrize(
    "text", ["[" * 100_000, '{"a":' * 100_000, "[" * 100 + "]" * 100, '[{"a":' * 30 + "0" + "}]" * 30]
)
def test_deep_json_is_a_value_error(text: str) -> None:
    with pytest.raises(ValueError, match="nested at most 50 deep"):
        limits.parse_json(text)
    with pytest.raises(StoreError, match="the stored bytes are damaged"):
        parse_stored(text)


def test_ordinary_json_is_parsed_and_huge_integers_are_refused() -> None:
    nested: Any = 0
    for _ in range(50):
        nested = [nested]
    assert limits.parse_json(str(nested)) == nested
    assert limits.parse_json(b'{"a": [1, {"b": null}]}') == {"a": [1, {"b": None}]}
    with pytest.raises(ValueError, match="integer string conversion"):
        limits.parse_json("9" * 5000)


def test_a_header_of_the_second_version_is_read_and_checked() -> None:
    """NumPy writes it for arrays with very many fields."""
    stream = io.BytesIO()
    np.lib.format.write_array(stream, np.arange(3.0), version=(2, 0))
    np.testing.assert_array_equal(limits.read_npy(stream.getvalue()), [0.0, 1.0, 2.0])
    for damaged in (stream.getvalue()[:-1], stream.getvalue() + b"x"):
        with pytest.raises(ValueError, match=r"an array of shape \(3,\) and type float64 does not have 2[35] bytes"):
            limits.read_npy(damaged)


@pytest.mark.parametrize(
    "data",
    [
        npy("(10**15,)"),
        npy("(1000000000000000,)"),
        npy("(1000000000000000,)", "|V0"),
        npy("(0, -5)"),
        npy("(-1,)"),
        npy("(3,)", "|O", bytes(24)),
        npy("(2,)", "<f8", bytes(15)),
        npy("(2,)", "<f8", bytes(17)),
        npy("(2,)", "<U1000000000"),
        npy("('a',)"),
        npy("(" * 50),
        npy("-" * 90 + "1"),
        npy("(1.5,)"),
        npy("()", "<q9"),
        b"\x93NUMPY\x09\x00",
        b"\x93NUMPY",
        b"",
    ],
)
def test_arrays_whose_header_is_not_true_are_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        limits.read_npy(data)
    archive = zip_file([ZipEntry("a.npy", data, len(data), method=0)])
    with pytest.raises(ValueError, match=r"\w"):
        limits.read_npz(io.BytesIO(archive), 1 << 30)


def test_ordinary_arrays_are_read() -> None:
    arrays: dict[str, Any] = {
        "empty": np.zeros((0, 4)),
        "scalar": np.array(3.5),
        "fortran": np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        "text": np.array(["a", "bcd", ""]),
        "flags": np.array([True, False]),
        "record": np.zeros(2, dtype=[("a", "<i4"), ("b", "<f8")]),
    }
    read = limits.read_npz(io.BytesIO(npz(**arrays)), 1 << 20)
    assert list(read) == list(arrays)
    for name, array in arrays.items():
        np.testing.assert_array_equal(read[name], array)
        assert read[name].dtype == array.dtype
    assert list(limits.read_npz(io.BytesIO(npz(**arrays)), 1 << 20, ["text"])) == ["text"]
    with pytest.raises(ValueError, match="has no array 'other'"):
        limits.read_npz(io.BytesIO(npz(**arrays)), 1 << 20, ["other"])


def test_the_size_of_a_zip_file_is_bounded_by_what_its_directory_states() -> None:
    bomb = deflate_bomb(1 << 28)
    with pytest.raises(ValueError, match="at most 1 MiB"):
        limits.read_npz(io.BytesIO(zip_file([ZipEntry("a.npy", bomb, 1 << 28)])), 1 << 20)
    many = [ZipEntry(f"{index}.npy", b"", 1 << 20) for index in range(2000)]
    with pytest.raises(ValueError, match="at most 1,024 MiB"):
        limits.read_npz(io.BytesIO(zip_file(many)), 1 << 30)
    with pytest.raises(ValueError, match="the file is damaged"):
        limits.read_npz(io.BytesIO(zip_file([ZipEntry("a.npy", bomb, 1000)])), 1 << 20)


def test_zip_files_that_turnout_never_writes_are_refused() -> None:
    packed = npz(a=np.zeros(1000))
    assert limits.read_npz(io.BytesIO(packed), 1 << 20)["a"].size == 1000
    with pytest.raises(ValueError, match="compression method that is not supported"):
        limits.read_npz(io.BytesIO(packed), None)
    for method in (12, 14, 99):  # bzip2, LZMA, unknown
        with pytest.raises(ValueError, match=r"not supported"):
            limits.read_npz(io.BytesIO(zip_file([ZipEntry("a.npy", b"", 0, method)])), 1 << 20)
    with pytest.raises(ValueError, match="an entry occurs twice"):
        limits.read_npz(io.BytesIO(zip_file([ZipEntry("a.npy", b"", 0)] * 2)), 1 << 20)
    # Entries without compression that share their bytes: each is as large as the file.
    overlapping = zip_file([ZipEntry(f"{index}.npy", b"", 1000, 0) for index in range(10)])
    with pytest.raises(ValueError, match="must have at most"):
        limits.read_npz(io.BytesIO(overlapping), None)
    with pytest.raises(ValueError, match=r"a zip directory must have at most 4,194,304 bytes, got \d"):
        limits.read_npz(io.BytesIO(zip_file([ZipEntry("x" * 60_000, b"", 0, 0)] * 100)), 1 << 20)


def test_random_damage_of_an_npz_file_is_a_value_error() -> None:
    whole, rng, refused = npz(a=np.arange(50.0), b=np.array(["x", "yz"])), random.Random(5), 0
    for _ in range(2000):
        damaged = bytearray(whole)
        for _ in range(rng.randrange(1, 4)):
            damaged[rng.randrange(len(whole))] = rng.randrange(256)
        try:
            limits.read_npz(io.BytesIO(bytes(damaged[: rng.choice((None, rng.randrange(len(whole))))])), 1 << 20)
        except ValueError:
            refused += 1
    assert refused > 1000


def test_stored_masks_must_have_the_length_that_their_header_states() -> None:
    flags = np.arange(19) % 3 == 0
    np.testing.assert_array_equal(limits.unpack_mask(np.packbits(flags), 19), flags)
    for count in (10**12, 25, 16, -1):
        with pytest.raises(ValueError, match="a mask of"):
            limits.unpack_mask(np.packbits(flags), count)
    for count in (-1, 10**9):
        with pytest.raises(ValueError, match="the number of clients must lie between"):
            limits.check_clients(count)


def test_a_compressed_model_file_is_refused(tmp_path: Path) -> None:
    log = TrainingLog(tmp_path / "fleet.turnout")
    log.write_model({"server_round": 1, "fleet_round": 1}, [np.arange(4.0)])
    assert read_model(log.model)[1][0].tolist() == [0, 1, 2, 3]
    log.write_metrics({"train": {1: {"loss": 0.5}}})
    assert log.series()["train"]["loss"][1].tolist() == [0.5]
    log.model.write_bytes(zip_file([ZipEntry("header.npy", deflate_bomb(1 << 27), 1 << 27)]))
    with pytest.raises(ValueError, match="compression method"):
        read_model(log.model)
    with pytest.raises(StoreError, match="the metrics cannot be read"):
        log.series()
    log.model.unlink()
    log.metrics.write_text('{"train":' * 100_000 + "\n")
    with pytest.raises(StoreError, match=r"the metrics cannot be read from .* nested at most 50 deep"):
        log.series()


PROGRAM = """
import sys
from pathlib import Path
from turnout.errors import StoreError
from turnout.live.turns.records import unpack_offer, was_available
from turnout.storage.encoding.packing import pack, unpack

data = Path(sys.argv[1]).read_bytes()
offer = pack({"round": 1, "clients": 8, "reasons": []}, {})
for read in (unpack, lambda blob: was_available(blob, 3), lambda blob: unpack_offer(offer, blob)):
    try:
        read(data)
    except StoreError as error:
        print(error)
"""


def test_a_stored_blob_that_is_a_bomb_takes_little_memory(tmp_path: Path) -> None:
    size = 6 << 30
    zipped, inflated = tmp_path / "zip", tmp_path / "zlib"
    zipped.write_bytes(zip_file([ZipEntry("header.json", deflate_bomb(size), 100)]))
    inflated.write_bytes(b"\x78\xda" + deflate_bomb(size))
    (tmp_path / "program.py").write_text(PROGRAM)
    for blob in (zipped, inflated):
        code, output, errors = run_limited(blob, program=tmp_path / "program.py")
        assert (code, errors) == (0, "")
        assert output.count("the stored bytes are damaged") == 3

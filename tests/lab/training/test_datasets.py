from __future__ import annotations

import hashlib
import math
import struct
from dataclasses import replace
from importlib import resources
from pathlib import Path

import numpy as np
import pytest

from turnout.errors import DatasetError, SettingError
from turnout.lab.training import datasets
from turnout.lab.training.datasets import (
    CIFAR10,
    FASHION_MNIST,
    SOURCES,
    ByteArray,
    DataFile,
    Dataset,
    DatasetSource,
    load_dataset,
    read_idx,
)

DEBIAN = Path("/usr/share/datasets/fashion-mnist")


def idx(array: ByteArray) -> bytes:
    return bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


def with_checksums_of(source: DatasetSource, contents: dict[str, bytes]) -> DatasetSource:
    """Returns the same dataset with the checksums of these contents."""
    assert source.files is not None
    files = tuple(DataFile(file.name, hashlib.sha256(contents[file.name]).hexdigest()) for file in source.files.files)
    return replace(source, files=replace(source.files, files=files))


def write_files(folder: Path, contents: dict[str, bytes]) -> None:
    for name, content in contents.items():
        (folder / name).write_bytes(content)


# The digits


@pytest.fixture(scope="module")
def digits() -> Dataset:
    return load_dataset("digits")


def test_the_digits_come_with_the_package_as_bytes_from_0_to_16(digits: Dataset) -> None:
    assert digits.name == "digits"
    assert digits.train_images.shape == (1437, 8, 8, 1)
    assert digits.train_labels.shape == (1437,)
    assert digits.test_images.shape == (360, 8, 8, 1)
    assert digits.test_labels.shape == (360,)
    for images in (digits.train_images, digits.test_images):
        assert images.dtype == np.uint8
        assert (images.min(), images.max()) == (0, digits.brightest) == (0, 16)
    assert digits.classes == tuple("0123456789")
    assert np.bincount(digits.train_labels, minlength=10).min() > 120
    assert np.bincount(digits.test_labels, minlength=10).min() > 20
    assert digits.train_labels.max() == digits.test_labels.max() == 9
    for array in (digits.train_images, digits.train_labels, digits.test_images, digits.test_labels):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 1


def test_every_fifth_digit_belongs_to_the_test_set(digits: Dataset) -> None:
    with resources.files("turnout.lab.training").joinpath("data/digits.npz").open("rb") as opened:
        arrays = np.load(opened, allow_pickle=False)
        images, labels = arrays["images"], arrays["labels"]
    assert (digits.test_images[..., 0] == images[::5]).all()
    assert (digits.test_labels == labels[::5]).all()
    training = np.delete(np.arange(len(labels)), np.s_[::5])
    assert (digits.train_images[..., 0] == images[training]).all()
    assert (digits.train_labels == labels[training]).all()


def test_the_bundled_file_is_small_and_its_licence_is_stated() -> None:
    folder = resources.files("turnout.lab.training").joinpath("data")
    assert len(folder.joinpath("digits.npz").read_bytes()) < 100_000
    attribution = folder.joinpath("ATTRIBUTION.md").read_text(encoding="utf-8")
    for fragment in ("digits.npz", "CC BY 4.0", "https://creativecommons.org/licenses/by/4.0/", "Alpaydin"):
        assert fragment in attribution
    assert SOURCES["digits"].licence == "CC BY 4.0"


# The idx format


def test_an_idx_file_is_parsed_with_big_endian_sizes() -> None:
    array = read_idx(bytes([0, 0, 8, 3]) + struct.pack(">3I", 2, 1, 3) + bytes([1, 2, 3, 4, 5, 255]))
    assert array.tolist() == [[[1, 2, 3]], [[4, 5, 255]]]
    assert array.dtype == np.uint8
    assert read_idx(bytes([0, 0, 8, 1, 0, 0, 1, 2]) + bytes(258)).shape == (258,)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "not an idx file"),
        (b"\x00\x00\x08", "not an idx file"),
        (b"\x1f\x8b\x08\x00rest", "not an idx file"),
        (bytes([0, 0, 13, 1, 0, 0, 0, 1]) + bytes(4), "not an idx file of bytes"),
        (bytes([0, 0, 8, 2, 0, 0, 0, 1]), "is truncated: its header has 12 bytes, the file 8"),
        (bytes([0, 0, 8, 1, 0, 0, 0, 3, 1, 2]), "but contains 2"),
        (bytes([0, 0, 8, 1, 0, 0, 0, 1, 1, 2]), "but contains 2"),
        (bytes([0, 0, 8, 3]) + struct.pack(">3I", 2**31, 2**31, 4), "but contains 0"),
    ],
)
def test_invalid_idx_files_are_rejected(content: bytes, message: str) -> None:
    with pytest.raises(DatasetError, match=message):
        read_idx(content)


# Fashion-MNIST and CIFAR-10, from generated files


def fashion_files() -> dict[str, bytes]:
    rng = np.random.default_rng(1)
    train, test = (rng.integers(0, 256, (items, 28, 28), dtype=np.uint8) for items in (12, 5))
    return {
        "train-images-idx3-ubyte": idx(train),
        "train-labels-idx1-ubyte": idx(np.arange(12, dtype=np.uint8) % 10),
        "t10k-images-idx3-ubyte": idx(test),
        "t10k-labels-idx1-ubyte": idx(np.arange(5, dtype=np.uint8)),
    }


def cifar_files() -> dict[str, bytes]:
    """Two images per file: the first with three known pixels, the second with a constant value in each channel."""
    contents = {}
    for number, file in enumerate(CIFAR10.files):
        known = np.zeros((3, 32, 32), dtype=np.uint8)
        known[0, 0, 1], known[1, 31, 0], known[2, 5, 7] = 11, 22, 33
        plain = np.repeat(np.array([100, 150, 200], dtype=np.uint8), 1024)
        contents[file.name] = bytes([number]) + known.tobytes() + bytes([9]) + plain.tobytes()
    return contents


def test_fashion_mnist_is_read_from_its_four_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    contents = fashion_files()
    write_files(tmp_path, contents)
    monkeypatch.setattr(datasets, "SOURCES", {"fashion-mnist": with_checksums_of(SOURCES["fashion-mnist"], contents)})
    loaded = load_dataset("fashion-mnist", tmp_path)
    assert loaded.train_images.shape == (12, 28, 28, 1)
    assert loaded.test_images.shape == (5, 28, 28, 1)
    assert loaded.train_labels.tolist() == [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 1]
    assert loaded.test_labels.tolist() == [0, 1, 2, 3, 4]
    assert loaded.train_images[3, 4, 5, 0] == contents["train-images-idx3-ubyte"][16 + 3 * 784 + 4 * 28 + 5]
    assert loaded.test_images[2, 27, 0, 0] == contents["t10k-images-idx3-ubyte"][16 + 2 * 784 + 27 * 28]
    assert not loaded.train_images.flags.writeable


def test_cifar_rows_consist_of_a_label_and_three_channels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    contents = cifar_files()
    write_files(tmp_path, contents)
    monkeypatch.setattr(datasets, "SOURCES", {"cifar-10": with_checksums_of(SOURCES["cifar-10"], contents)})
    loaded = load_dataset("cifar-10", tmp_path)
    assert loaded.train_images.shape == (10, 32, 32, 3)
    assert loaded.test_images.shape == (2, 32, 32, 3)
    assert loaded.train_labels.tolist() == [0, 9, 1, 9, 2, 9, 3, 9, 4, 9]
    assert loaded.test_labels.tolist() == [5, 9]
    for known in (loaded.train_images[4], loaded.test_images[0]):
        assert known[0, 1].tolist() == [11, 0, 0]
        assert known[31, 0].tolist() == [0, 22, 0]
        assert known[5, 7].tolist() == [0, 0, 33]
        assert known.sum() == 66
    assert (loaded.train_images[1] == [100, 150, 200]).all()
    assert not loaded.test_images.flags.writeable


@pytest.mark.skipif(not DEBIAN.is_dir(), reason="Debian's dataset-fashion-mnist is not installed")
def test_the_real_fashion_mnist_is_complete() -> None:
    loaded = load_dataset("fashion-mnist", DEBIAN)
    assert loaded.train_images.shape == (60_000, 28, 28, 1)
    assert loaded.test_images.shape == (10_000, 28, 28, 1)
    assert np.bincount(loaded.train_labels).tolist() == [6000] * 10
    assert np.bincount(loaded.test_labels).tolist() == [1000] * 10
    assert math.isclose(float(loaded.train_images.mean()) / 255, 0.2860, abs_tol=1e-4)  # the published mean


# Descriptions


def test_every_dataset_has_ten_classes_a_licence_and_checksums_of_its_own() -> None:
    for name, source in SOURCES.items():
        assert source.name == name
        assert len(set(source.classes)) == 10
        assert source.licence
    files = [*FASHION_MNIST.files, *CIFAR10.files]
    assert len({file.sha256 for file in files}) == len({file.name for file in files}) == len(files)
    for file in files:
        assert len(bytes.fromhex(file.sha256)) == 32
    with pytest.raises(SettingError, match=r"'fashion-mnits' \(did you mean 'fashion-mnist'\?\); there are digits"):
        load_dataset("fashion-mnits")


@pytest.mark.parametrize(
    ("images", "labels"),
    [
        (np.zeros((2, 4, 4), dtype=np.uint8), np.zeros(2, dtype=np.uint8)),
        (np.zeros((2, 4, 4, 1), dtype=np.uint8), np.zeros(3, dtype=np.uint8)),
        (np.zeros((2, 4, 4, 1), dtype=np.uint8), np.array([0, 2], dtype=np.uint8)),
    ],
)
def test_images_and_labels_that_do_not_match_are_rejected(images: ByteArray, labels: ByteArray) -> None:
    good = np.zeros((1, 4, 4, 1), dtype=np.uint8), np.zeros(1, dtype=np.uint8)
    with pytest.raises(DatasetError, match="do not match"):
        Dataset("mine", ("a", "b"), images, labels, *good)
    with pytest.raises(DatasetError, match="do not match"):
        Dataset("mine", ("a", "b"), *good, images, labels)

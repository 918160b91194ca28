"""The datasets (Fashion-MNIST, CIFAR-10, and the UCI digits that come with the package), and the files of each."""

from __future__ import annotations

import hashlib
import http.client
import io
import math
import os
import struct
import tarfile
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from turnout.errors import DatasetError, SettingError, look_up
from turnout.storage.encoding.limits import gunzip, read_file, too_large
from turnout.storage.files.system import atomic_write

CHUNK = 1 << 20
#: The largest download, and the largest content of a file: all of CIFAR-10 has 184 MB.
MAX_BYTES = 1 << 29
Watcher = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class DataFile:
    """The name of a file and the SHA-256 checksum of its decompressed content."""

    name: str
    sha256: str


@dataclass(frozen=True, slots=True)
class Files:
    """The files of a dataset, and where they can be obtained.

    `address`: the URL that the file names are appended to. `archive`: the name of an archive at that URL that contains
    all files; None if each file is available there as NAME.gz. `system_folders`: where system packages install them.
    """

    dataset: str
    files: tuple[DataFile, ...]
    address: str
    archive: str | None = None
    system_folders: tuple[str, ...] = ()


def data_folder(dataset: str) -> Path:
    """Returns the folder for downloads of a dataset: in $TURNOUT_DATA, or in the user's cache folder."""
    root = os.environ.get("TURNOUT_DATA")
    if root:
        return Path(root) / dataset
    cache = os.environ.get("XDG_CACHE_HOME")
    return (Path(cache) if cache else Path.home() / ".cache") / "turnout" / dataset


def find_folder(files: Files, folder: Path | None = None) -> Path:
    """Returns the first folder that contains any of the files; searches only `folder` if it is given."""
    candidates = [folder] if folder is not None else [data_folder(files.dataset), *map(Path, files.system_folders)]
    for candidate in candidates:
        if any(_find_file(candidate, file) is not None for file in files.files):
            return candidate
    searched = ", ".join(str(candidate) for candidate in candidates)
    raise DatasetError(
        f"{files.dataset} was not found in {searched}: download it, or put "
        f"{', '.join(file.name for file in files.files)} into one of these folders",
        dataset=files.dataset,
    )


def read_checked(files: Files, folder: Path | None = None) -> dict[str, bytes]:
    """Returns the decompressed content of every file by name, after comparing its checksum."""
    source = find_folder(files, folder)
    return {file.name: _read(files, source, file) for file in files.files}


def fetch(
    files: Files, folder: Path | None = None, *, address: str | None = None, watch: Watcher | None = None
) -> Path:
    """Downloads the files that are missing or damaged, and returns their folder.

    A file appears under its name only after its checksum was verified. `watch` is called with the size of each
    downloaded chunk in bytes.
    """
    target = folder or data_folder(files.dataset)
    missing = [file for file in files.files if not _is_intact(files, target, file)]
    source = (address or files.address).rstrip("/") + "/"
    try:
        target.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DatasetError(f"cannot write into {target}: {error.strerror or error}") from error
    if not missing:
        return target
    contents: Mapping[str, bytes]
    if files.archive is None:
        contents = {file.name: _download_gzip(f"{source}{file.name}.gz", watch) for file in missing}
    else:
        archive = _download(f"{source}{files.archive}", watch)
        contents = _extract_members(archive, [file.name for file in missing], source)
    for file in missing:
        _write_checked(target, file, contents[file.name], source)
    return target


def _read(files: Files, folder: Path, file: DataFile) -> bytes:
    path = _find_file(folder, file)
    if path is None:
        raise DatasetError(f"{file.name} is missing from {folder}: download it", dataset=files.dataset)
    try:
        content = read_file(path, MAX_BYTES)
    except (OSError, EOFError, ValueError) as error:
        raise DatasetError(
            f"{path} cannot be read ({error}), expected is content with the SHA-256 {file.sha256}: delete it and "
            "download it again",
            dataset=files.dataset,
        ) from error
    actual = hashlib.sha256(content).hexdigest()
    if actual != file.sha256:
        raise DatasetError(
            f"{path} is damaged: its SHA-256 is {actual}, expected is {file.sha256}: delete it and download it again",
            dataset=files.dataset,
        )
    return content


def _is_intact(files: Files, folder: Path, file: DataFile) -> bool:
    try:
        _read(files, folder, file)
    except DatasetError:
        return False
    return True


def _find_file(folder: Path, file: DataFile) -> Path | None:
    for path in (folder / file.name, folder / f"{file.name}.gz"):
        if path.is_file():
            return path
    return None


def _write_checked(folder: Path, file: DataFile, content: bytes, source: str) -> None:
    actual = hashlib.sha256(content).hexdigest()
    if actual != file.sha256:
        raise DatasetError(
            f"{file.name} from {source} has the SHA-256 {actual}, expected is {file.sha256}: it was not kept. "
            "Try again later, or obtain the file from another source"
        )
    try:
        with atomic_write(folder / file.name) as opened:
            opened.write(content)
    except SettingError as error:
        raise DatasetError(str(error)) from error


def _download_gzip(address: str, watch: Watcher | None) -> bytes:
    try:
        return gunzip(io.BytesIO(_download(address, watch)), MAX_BYTES)
    except (OSError, EOFError, ValueError) as error:
        raise DatasetError(f"the response from {address} is not a gzip file ({error}): nothing was kept") from error


def _extract_members(archive: bytes, names: Sequence[str], source: str) -> Mapping[str, bytes]:
    """Extracts the regular files with these base names only, so that no member can write outside the folder."""
    contents: dict[str, bytes] = {}
    try:
        content = io.BytesIO(gunzip(io.BytesIO(archive), MAX_BYTES))
        with tarfile.open(fileobj=content, mode="r:") as opened:
            for member in opened:
                name = Path(member.name).name
                reader = opened.extractfile(member) if name in names and member.isfile() else None
                if reader is not None:
                    contents[name] = reader.read()
    except (tarfile.TarError, OSError, EOFError, ValueError, RecursionError) as error:
        raise DatasetError(f"the archive from {source} is damaged ({error}): nothing was kept") from error
    for name in names:
        if name not in contents:
            raise DatasetError(f"the archive from {source} contains no file {name}: nothing was kept")
    return contents


def _download(address: str, watch: Watcher | None) -> bytes:
    if not address.startswith(("https://", "http://")):
        raise DatasetError(f"{address} is not a web address: it must start with https:// or http://")
    content = bytearray()
    try:
        with urllib.request.urlopen(address, timeout=60) as response:
            while chunk := response.read(CHUNK):
                content += chunk
                if len(content) > MAX_BYTES:
                    raise too_large(MAX_BYTES)
                if watch is not None:
                    watch(len(chunk))
            if response.length:
                raise OSError(f"the connection ended {response.length} bytes too early")
    except (urllib.error.URLError, http.client.HTTPException, OSError, ValueError) as error:
        reason = getattr(error, "reason", error)
        if isinstance(error, urllib.error.HTTPError):
            error.close()  # it holds the connection open
        raise DatasetError(
            f"cannot download {address}: {reason}. Check the network connection, or copy the files into the folder by "
            "hand"
        ) from error
    return bytes(content)


ByteArray = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True, eq=False)
class Dataset:
    """Training and test images with their labels.

    Images have the shape (items, height, width, channels) and pixel values from 0 to `brightest`; labels are indices
    into `classes`.
    """

    name: str
    classes: tuple[str, ...]
    train_images: ByteArray
    train_labels: ByteArray
    test_images: ByteArray
    test_labels: ByteArray
    brightest: int = 255

    def __post_init__(self) -> None:
        for images, labels in ((self.train_images, self.train_labels), (self.test_images, self.test_labels)):
            if (
                images.ndim != 4
                or labels.shape != (len(images),)
                or (len(labels) and labels.max() >= len(self.classes))
            ):
                raise DatasetError(
                    f"{self.name}: images {images.shape} and labels {labels.shape} do not match: images must have 4 "
                    f"dimensions, and each image one label below {len(self.classes)}"
                )
            images.setflags(write=False)
            labels.setflags(write=False)

    @property
    def brightness(self) -> tuple[float, float]:
        """The mean and the standard deviation of all pixel values of the training images."""
        counts = np.zeros(256, dtype=np.int64)
        for first in range(0, len(self.train_images), 1000):
            counts += np.bincount(self.train_images[first : first + 1000].ravel(), minlength=256)
        values = np.arange(256)
        mean = float(counts @ values / counts.sum())
        return mean, math.sqrt(float(counts @ (values - mean) ** 2 / counts.sum()))


@dataclass(frozen=True, slots=True)
class DatasetSource:
    """The description of a dataset; `files` is None if it comes with the package."""

    name: str
    title: str
    licence: str
    classes: tuple[str, ...]
    parse: Callable[[Mapping[str, bytes]], tuple[ByteArray, ByteArray, ByteArray, ByteArray]]
    files: Files | None
    brightest: int = 255


def load_dataset(name: str, folder: Path | None = None) -> Dataset:
    """Loads a dataset by name, after comparing the checksums of its files.

    >>> digits = load_dataset("digits")
    >>> digits.train_images.shape, digits.test_images.shape
    ((1437, 8, 8, 1), (360, 8, 8, 1))
    """
    source = find_source(name)
    contents = {} if source.files is None else read_checked(source.files, folder)
    return Dataset(source.name, source.classes, *source.parse(contents), brightest=source.brightest)


def find_source(name: str) -> DatasetSource:
    """Returns the description of a dataset."""
    return look_up("dataset", name, SOURCES)


def read_idx(content: bytes) -> ByteArray:
    """Parses an idx file of bytes (the format of MNIST): a magic number, the sizes, the data.

    >>> read_idx(bytes([0, 0, 8, 1, 0, 0, 0, 2, 7, 9]))
    array([7, 9], dtype=uint8)
    """
    if len(content) < 4 or content[:3] != b"\x00\x00\x08":
        raise DatasetError("this is not an idx file of bytes: it must start with the bytes 0, 0, 8")
    dimensions = content[3]
    start = 4 + 4 * dimensions
    if len(content) < start:
        raise DatasetError(f"this idx file is truncated: its header has {start} bytes, the file {len(content)}")
    shape = struct.unpack(f">{dimensions}I", content[4:start])
    body = np.frombuffer(content, dtype=np.uint8, offset=start)
    if len(body) != math.prod(shape):
        raise DatasetError(
            f"this idx file should contain {math.prod(shape)} bytes of shape {shape}, but contains {len(body)}"
        )
    return body.reshape(shape).copy()


def _parse_digits(_: Mapping[str, bytes]) -> tuple[ByteArray, ByteArray, ByteArray, ByteArray]:
    """Every fifth item belongs to the test set, which keeps the class proportions of both sets equal."""
    with resources.files("turnout.lab.training").joinpath("data/digits.npz").open("rb") as opened:
        arrays: Any = np.load(opened, allow_pickle=False)
        images, labels = arrays["images"][..., None], arrays["labels"]
    test = np.arange(len(labels)) % 5 == 0
    return images[~test], labels[~test], images[test], labels[test]


def _parse_fashion_mnist(contents: Mapping[str, bytes]) -> tuple[ByteArray, ByteArray, ByteArray, ByteArray]:
    arrays = {name: read_idx(content) for name, content in contents.items()}
    return (
        arrays["train-images-idx3-ubyte"][..., None],
        arrays["train-labels-idx1-ubyte"],
        arrays["t10k-images-idx3-ubyte"][..., None],
        arrays["t10k-labels-idx1-ubyte"],
    )


def _parse_cifar10(contents: Mapping[str, bytes]) -> tuple[ByteArray, ByteArray, ByteArray, ByteArray]:
    """Each row consists of a label and 3 × 32 × 32 bytes, channel by channel."""

    def parse_rows(names: list[str]) -> tuple[ByteArray, ByteArray]:
        rows = np.concatenate([np.frombuffer(contents[name], dtype=np.uint8).reshape(-1, 3073) for name in names])
        images = np.ascontiguousarray(rows[:, 1:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1))
        return images, rows[:, 0].copy()

    return *parse_rows([f"data_batch_{number}.bin" for number in range(1, 6)]), *parse_rows(["test_batch.bin"])


FASHION_MNIST = Files(
    "fashion-mnist",
    (
        DataFile("train-images-idx3-ubyte", "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888"),
        DataFile("train-labels-idx1-ubyte", "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9"),
        DataFile("t10k-images-idx3-ubyte", "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b"),
        DataFile("t10k-labels-idx1-ubyte", "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34"),
    ),
    address="http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
    system_folders=("/usr/share/datasets/fashion-mnist",),  # Debian's dataset-fashion-mnist
)

CIFAR10 = Files(
    "cifar-10",
    (
        DataFile("data_batch_1.bin", "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5"),
        DataFile("data_batch_2.bin", "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed"),
        DataFile("data_batch_3.bin", "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67"),
        DataFile("data_batch_4.bin", "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48"),
        DataFile("data_batch_5.bin", "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add"),
        DataFile("test_batch.bin", "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b"),
    ),
    address="https://www.cs.toronto.edu/~kriz/",
    archive="cifar-10-binary.tar.gz",
)

SOURCES: Mapping[str, DatasetSource] = {
    source.name: source
    for source in (
        DatasetSource(
            "digits", "UCI handwritten digits, 8 × 8", "CC BY 4.0", tuple("0123456789"), _parse_digits, None, 16
        ),
        DatasetSource(
            "fashion-mnist",
            "Fashion-MNIST, 28 × 28",
            "MIT",
            ("T-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "boot"),
            _parse_fashion_mnist,
            FASHION_MNIST,
        ),
        DatasetSource(
            "cifar-10",
            "CIFAR-10, 32 × 32 in colour",
            "not stated; cite Krizhevsky, 2009",
            ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"),
            _parse_cifar10,
            CIFAR10,
        ),
    )
}

"""Files of datasets: finding, verifying and downloading them."""

from __future__ import annotations

import hashlib
import http.client
import io
import os
import tarfile
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from turnout.errors import DatasetError, SettingError
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

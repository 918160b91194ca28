"""Dataset files: where they are, whether they are whole, how to get them."""

from __future__ import annotations

import gzip
import hashlib
import http.client
import io
import os
import tarfile
import urllib.error
import urllib.request
import zlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from turnout.errors import DatasetError

CHUNK = 1 << 20
Watcher = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class DataFile:
    """A file by its name and the SHA-256 of its content, decompressed."""

    name: str
    sha256: str


@dataclass(frozen=True, slots=True)
class Files:
    """The files of a dataset, the address they come from, and folders where a system may have put them.

    `archive`: the name of the one archive at that address that holds them all; None where each lies there as NAME.gz.
    """

    dataset: str
    files: tuple[DataFile, ...]
    address: str
    archive: str | None = None
    places: tuple[str, ...] = ()


def data_folder(dataset: str) -> Path:
    """Where a fetched dataset is kept: in $TURNOUT_DATA, or in the user's cache."""
    root = os.environ.get("TURNOUT_DATA")
    if root:
        return Path(root) / dataset
    cache = os.environ.get("XDG_CACHE_HOME")
    return (Path(cache) if cache else Path.home() / ".cache") / "turnout" / dataset


def find_folder(files: Files, folder: Path | None = None) -> Path:
    """The folder that holds the files: the one given, else the first of the known ones that has any of them."""
    candidates = [folder] if folder is not None else [data_folder(files.dataset), *map(Path, files.places)]
    for candidate in candidates:
        if any(_path_of(candidate, one) is not None for one in files.files):
            return candidate
    looked = ", ".join(str(candidate) for candidate in candidates)
    raise DatasetError(
        f"{files.dataset} was not found in {looked}: download it, or put "
        f"{', '.join(one.name for one in files.files)} into one of these folders",
        dataset=files.dataset,
    )


def read_checked(files: Files, folder: Path | None = None) -> dict[str, bytes]:
    """The content of every file, each checked by its checksum before anybody uses it."""
    found = find_folder(files, folder)
    return {one.name: _read(files, found, one) for one in files.files}


def fetch(
    files: Files, folder: Path | None = None, *, address: str | None = None, watch: Watcher | None = None
) -> Path:
    """Download what is missing or damaged; a file takes its name only after its checksum was found right."""
    target = folder or data_folder(files.dataset)
    missing = [one for one in files.files if not _is_whole(files, target, one)]
    source = (address or files.address).rstrip("/") + "/"
    try:
        target.mkdir(parents=True, exist_ok=True)
    except OSError as refused:
        raise DatasetError(f"cannot write into {target}: {refused.strerror or refused}") from refused
    if not missing:
        return target
    contents: Mapping[str, bytes]
    if files.archive is None:
        contents = {one.name: _decompressed(f"{source}{one.name}.gz", watch) for one in missing}
    else:
        contents = _members(_downloaded(f"{source}{files.archive}", watch), [one.name for one in missing], source)
    for one in missing:
        _write_checked(target, one, contents[one.name], source)
    return target


def _read(files: Files, folder: Path, one: DataFile) -> bytes:
    path = _path_of(folder, one)
    if path is None:
        raise DatasetError(f"{one.name} is missing from {folder}: download it", dataset=files.dataset)
    try:
        content = path.read_bytes()
        if path.suffix == ".gz":
            content = gzip.decompress(content)
    except (OSError, EOFError, zlib.error) as damaged:
        raise DatasetError(
            f"{path} cannot be read ({damaged}), expected is content with the SHA-256 {one.sha256}: delete it and "
            "download it again",
            dataset=files.dataset,
        ) from damaged
    found = hashlib.sha256(content).hexdigest()
    if found != one.sha256:
        raise DatasetError(
            f"{path} is damaged: its SHA-256 is {found}, expected is {one.sha256}: delete it and download it again",
            dataset=files.dataset,
        )
    return content


def _is_whole(files: Files, folder: Path, one: DataFile) -> bool:
    try:
        _read(files, folder, one)
    except DatasetError:
        return False
    return True


def _path_of(folder: Path, one: DataFile) -> Path | None:
    for path in (folder / one.name, folder / f"{one.name}.gz"):
        if path.is_file():
            return path
    return None


def _write_checked(folder: Path, one: DataFile, content: bytes, source: str) -> None:
    found = hashlib.sha256(content).hexdigest()
    if found != one.sha256:
        raise DatasetError(
            f"{one.name} from {source} has the SHA-256 {found}, expected is {one.sha256}: it was not kept. "
            "Try again later, or get the file from elsewhere"
        )
    part = folder / f"{one.name}.part"
    try:
        with part.open("wb") as opened:
            opened.write(content)
            opened.flush()
            os.fsync(opened.fileno())
        part.replace(folder / one.name)
    except OSError as refused:
        with suppress(OSError):
            part.unlink()
        raise DatasetError(f"cannot write {folder / one.name}: {refused.strerror or refused}") from refused


def _decompressed(address: str, watch: Watcher | None) -> bytes:
    try:
        return gzip.decompress(_downloaded(address, watch))
    except (OSError, EOFError, zlib.error) as damaged:
        raise DatasetError(f"what came from {address} is not a gzip file ({damaged}): nothing was kept") from damaged


def _members(archive: bytes, names: Sequence[str], source: str) -> Mapping[str, bytes]:
    """Only the members that are wanted, by their last name; nothing else is unpacked."""
    contents: dict[str, bytes] = {}
    try:
        with tarfile.open(fileobj=io.BytesIO(archive), mode="r:gz") as opened:
            for member in opened:
                name = Path(member.name).name
                reader = opened.extractfile(member) if name in names and member.isfile() else None
                if reader is not None:
                    contents[name] = reader.read()
    except (tarfile.TarError, OSError, EOFError, zlib.error) as damaged:
        raise DatasetError(f"the archive from {source} is damaged ({damaged}): nothing was kept") from damaged
    for name in names:
        if name not in contents:
            raise DatasetError(f"the archive from {source} holds no {name}: nothing was kept")
    return contents


def _downloaded(address: str, watch: Watcher | None) -> bytes:
    if not address.startswith(("https://", "http://")):
        raise DatasetError(f"{address} is not a web address")
    content = bytearray()
    try:
        with urllib.request.urlopen(address, timeout=60) as reply:
            while chunk := reply.read(CHUNK):
                content += chunk
                if watch is not None:
                    watch(len(chunk))
            if reply.length:
                raise OSError(f"the connection ended {reply.length} bytes too early")
    except (urllib.error.URLError, http.client.HTTPException, OSError, ValueError) as failed:
        why = getattr(failed, "reason", failed)
        if isinstance(failed, urllib.error.HTTPError):
            failed.close()  # it holds the connection open
        raise DatasetError(
            f"cannot download {address}: {why}. Is this machine on the net? The files may also be put into the folder "
            "by hand"
        ) from failed
    return bytes(content)

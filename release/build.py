"""Builds the source distribution and both wheels of a commit."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
_LEFT_BEHIND = shutil.ignore_patterns(".venv*", "build", "dist", "__pycache__", ".*_cache", ".hypothesis", "*.egg-info")


@dataclass(frozen=True)
class Distributions:
    """The files of one version."""

    sources: Path
    compiled: Path
    numpy: Path

    def __iter__(self) -> Iterator[Path]:
        """Iterates over the files."""
        return iter((self.sources, self.compiled, self.numpy))


def git(*arguments: str, root: Path = ROOT) -> str:
    """Returns what git prints."""
    return subprocess.run(["git", "-C", str(root), *arguments], capture_output=True, text=True, check=True).stdout


def is_checkout(root: Path = ROOT) -> bool:
    """Whether the folder is the top of a checkout, and not an unpacked source distribution."""
    return (root / ".git").exists()


def head(root: Path = ROOT) -> str:
    """Returns the commit that is checked out; empty if the folder is no checkout."""
    return git("rev-parse", "HEAD", root=root).strip() if is_checkout(root) else ""


def commit_time(commit: str, root: Path = ROOT) -> str:
    """Returns the time of all files: SOURCE_DATE_EPOCH, or that of the commit or of the unpacked distribution."""
    if given := os.environ.get("SOURCE_DATE_EPOCH"):
        return given
    if commit:
        return git("log", "-1", "--format=%ct", commit, root=root).strip()
    return str(int((root / "PKG-INFO").stat().st_mtime))


def uncommitted_changes(root: Path = ROOT) -> list[str]:
    """Returns the tracked files that differ from the commit, and are therefore not in the distributions."""
    if not is_checkout(root):
        return []
    return [line[3:] for line in git("status", "--porcelain", "--untracked-files=no", root=root).splitlines()]


def build(out: Path, work: Path, commit: str, *, root: Path = ROOT) -> Distributions:
    """Builds a commit, or if it is empty an unpacked source distribution, in the empty folder `work`.

    The wheels are built from the source distribution, as a package index or a packager would build them.
    """
    environment = {
        "SOURCE_DATE_EPOCH": commit_time(commit, root),
        "PIP_CONSTRAINT": str(root / "constraints.txt"),
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
    }
    exported = work / "exported"
    if commit:
        exported.mkdir(parents=True)
        archive = work / "commit.tar"
        git("archive", "--output", str(archive), commit, root=root)
        unpack(archive, exported)
    else:
        shutil.copytree(root, exported, ignore=_LEFT_BEHIND)
    sources = _build("--sdist", exported, work / "sources", environment)
    unpack(sources, work / "unpacked")
    (unpacked,) = (work / "unpacked").iterdir()
    wheels = [
        _build("--wheel", unpacked, work / kernel, {**environment, "TURNOUT_BUILD_KERNEL": kernel})
        for kernel in ("compiled", "numpy")
    ]
    out.mkdir(parents=True, exist_ok=True)
    for earlier in [*out.glob("turnout-*.whl"), *out.glob("turnout-*.tar.gz")]:
        earlier.unlink()
    return Distributions(*(Path(shutil.copy(file, out)) for file in (sources, *wheels)))


def unpack(archive: Path, folder: Path) -> None:
    """Extracts an archive of our own; the first releases of Python 3.11 have no filters."""
    with tarfile.open(archive) as tar:
        if hasattr(tarfile, "data_filter"):
            tar.extractall(folder, filter="data")
        else:
            tar.extractall(folder)


def _build(kind: str, source: Path, out: Path, environment: Mapping[str, str]) -> Path:
    command = [sys.executable, "-m", "build", kind, "--outdir", str(out), str(source)]
    done = subprocess.run(
        command, env={**os.environ, **environment}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    if done.returncode:
        raise SystemExit(f"{done.stdout}\n{' '.join(command)} failed")
    (built,) = out.iterdir()
    return built

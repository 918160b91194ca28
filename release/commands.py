"""The commands of setuptools, changed in three ways, for setup.py.

- A kernel that cannot be compiled is no error: the package is built without it, for every platform, and says so.
- Nothing that an earlier build has left behind gets into a package.
- With SOURCE_DATE_EPOCH, the same sources give the same bytes.
"""

from __future__ import annotations

import gzip
import importlib.util
import os
import sys
import tarfile
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from setuptools import Command
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext
from setuptools.command.egg_info import egg_info
from setuptools.command.sdist import sdist
from setuptools.errors import BaseError, CCompilerError, PlatformError

from release.kernel import FOLDER, requested_kernel

WITHOUT_KERNEL = (
    "turnout: the compiled kernel was not built ({reason}). turnout is installed with the NumPy kernel, which selects "
    "the same clients, more slowly. For the compiled kernel, install a C++ compiler and install turnout again."
)


class BuildKernel(build_ext):
    """Builds the compiled kernel, or a package without it."""

    extensions: list[Any]

    def run(self) -> None:
        """Builds the extension; if that fails, this and the other commands continue as if there were none."""
        if self.inplace:
            # A module of an earlier build must not stay if this build fails; one of another ABI would be preferred.
            for pattern in ("_fast*.so", "_fast*.pyd"):
                for stale in Path(FOLDER).glob(pattern):
                    stale.unlink()
        super().run()
        built = [extension for extension in self.extensions if Path(self.get_ext_fullpath(extension.name)).exists()]
        self.extensions = self.distribution.ext_modules = built

    def build_extension(self, ext: Any) -> None:
        """Builds the extension; an error is fatal only if the compiled kernel was requested."""
        try:
            if importlib.util.find_spec("Cython") is None:  # setuptools would compile a _fast.cpp of an earlier build
                raise PlatformError("Cython is not installed")
            super().build_extension(ext)
        except (BaseError, CCompilerError) as error:
            if requested_kernel() == "compiled":
                raise SystemExit(f"the compiled kernel was requested, and cannot be built: {error}") from error
            print(WITHOUT_KERNEL.format(reason=str(error).strip()), file=sys.stderr, flush=True)


class BuildWheel(bdist_wheel):
    """Builds a wheel; without the compiled kernel, it is a wheel for every platform."""

    def run_command(self, command: str) -> None:
        """Runs another command. Only after `build` is it known whether there is an extension."""
        super().run_command(command)
        if command == "build":
            self.root_is_pure = not self.distribution.has_ext_modules()

    def write_wheelfile(self, wheelfile_base: str, *args: Any, **options: Any) -> None:
        """Writes the last file, and makes the modes of all files independent of the umask."""
        super().write_wheelfile(wheelfile_base, *args, **options)
        for path in Path(self.bdist_dir).rglob("*"):
            path.chmod(0o755 if path.is_dir() or path.suffix in (".so", ".pyd") else 0o644)


class ListSources(egg_info):
    """Lists the sources; the list of an earlier build, which setuptools would add, is not read."""

    def find_sources(self) -> None:
        """Writes the list of sources."""
        Path(self.egg_info, "SOURCES.txt").unlink(missing_ok=True)
        super().find_sources()


class BuildSources(sdist):
    """Builds the source distribution in a new folder; its bytes depend only on its files and SOURCE_DATE_EPOCH."""

    def make_distribution(self) -> None:
        """Writes the archive."""
        name = self.distribution.get_fullname()
        archive = Path(self.dist_dir, f"{name}.tar.gz")
        archive.parent.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory() as folder:
            files = [file for file in self.filelist.files if ".egg-info" not in file]
            self.make_release_tree(str(Path(folder, name)), files)
            write_archive(archive, Path(folder, name), os.environ.get("SOURCE_DATE_EPOCH"))
        self.archive_files = [str(archive)]


def write_archive(archive: Path, folder: Path, epoch: str | None) -> None:
    """Writes all files of a folder, without owners and with the same modes and the same time for all."""
    time = int(epoch) if epoch else None
    with (
        archive.open("wb") as file,
        gzip.GzipFile(filename="", mode="wb", fileobj=file, mtime=time) as compressed,
        tarfile.open(fileobj=compressed, mode="w", format=tarfile.PAX_FORMAT) as tar,
    ):
        for path in sorted(path for path in folder.rglob("*") if path.is_file()):
            member = tar.gettarinfo(path, arcname=path.relative_to(folder.parent).as_posix())
            member.uid = member.gid = 0
            member.uname = member.gname = ""
            member.mode = 0o755 if member.mode & 0o100 else 0o644
            member.mtime = int(member.mtime) if time is None else time
            with path.open("rb") as content:
                tar.addfile(member, content)


COMMANDS: dict[str, type[Command]] = {
    "bdist_wheel": BuildWheel,
    "build_ext": BuildKernel,
    "egg_info": ListSources,
    "sdist": BuildSources,
}

"""Builds of a copy of the repository in which earlier builds have left their files behind."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import pytest

import turnout
from release.kernel import requested_kernel

pytest.importorskip("Cython")
pytestmark = [
    pytest.mark.skipif(sys.platform == "win32", reason="the compiler of the tests is a POSIX program"),
    pytest.mark.thorough,
]

ROOT = Path(__file__).parents[2]
LEFT_BEHIND = "left behind by an earlier build"
#: Planted in the copy: none of it may get into a distribution.
STALE = {
    "build/lib/turnout/planted.py": "PLANTED = True\n",
    f"build/lib.linux-x86_64-cpython-{sys.version_info[0]}{sys.version_info[1]}/turnout/planted.py": "PLANTED = True\n",
    "build/bdist.linux-x86_64/wheel/turnout/planted.py": "PLANTED = True\n",
    f"turnout-{turnout.__version__}/planted.py": "PLANTED = True\n",
    "secret.txt": "listed by the SOURCES.txt of an earlier build\n",
    "src/turnout.egg-info/SOURCES.txt": "secret.txt\nsrc/turnout/__init__.py\n",
    "src/turnout/kernel/_fast.cpp": f"#error {LEFT_BEHIND}\n",
    f"src/turnout/kernel/_fast.cpython-{sys.version_info[0]}{sys.version_info[1]}-x86_64-linux-gnu.so": LEFT_BEHIND,
    "src/turnout/kernel/_fast.abi3.so": LEFT_BEHIND,
    "src/turnout/__pycache__/planted.cpython-311.pyc": "",
    "tests/__pycache__/planted.cpython-311.pyc": "",
}
#: A kernel that Cython translates at once.
PYX = 'NAME = "translated from the sources of the copy"\n'
#: A compiler that is fast: its output is its input.
COMPILER = f"""#!{sys.executable} -IS
import sys
arguments = sys.argv[1:]
output = arguments[arguments.index("-o") + 1]
inputs = [name for name in arguments if name.endswith((".cpp", ".o")) and name != output]
with open(output, "w") as file:
    print(*arguments, file=file)
    for name in inputs:
        file.write(open(name).read())
"""


@dataclass(frozen=True)
class Copy:
    """A copy of the repository, and a folder for what is built."""

    root: Path
    out: Path

    def build(self, hook: str, **environment: str) -> tuple[Path, str]:
        """Returns what a function of the build backend builds, and everything that it prints."""
        self.out.mkdir(exist_ok=True)
        before = set(self.out.iterdir())
        done = subprocess.run(
            [sys.executable, "-c", f"import setuptools.build_meta as backend; backend.{hook}({str(self.out)!r})"],
            cwd=self.root,
            env={**os.environ, "SOURCE_DATE_EPOCH": "1700000000", **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout
        (built,) = set(self.out.iterdir()) - before
        return built, done.stdout


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Copy:
    folder = tmp_path_factory.mktemp("repository")
    other = (".git", ".venv*", "build", "dist", "*.so", "*.egg-info", ".*_cache", ".hypothesis", "__pycache__")
    shutil.copytree(ROOT, folder / "copy", ignore=shutil.ignore_patterns(*other))
    (folder / "copy/src/turnout/kernel/_fast.pyx").write_text(PYX)
    for name, text in STALE.items():
        (folder / "copy" / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / "copy" / name).write_text(text)
    return Copy(folder / "copy", folder / "out")


def known_files() -> set[str]:
    """Returns the files of the next commit."""
    command = ["git", "-C", str(ROOT), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(command, capture_output=True, text=True, check=True).stdout.rstrip("\0").split("\0")
    return {name for name in names if (ROOT / name).is_file()}


def read_sources(archive: Path) -> dict[str, bytes]:
    """Returns the files of a source distribution, by their paths in the repository."""
    with tarfile.open(archive) as tar:
        opened = ((member.name.partition("/")[2], tar.extractfile(member)) for member in tar if member.isfile())
        return {name: file.read() for name, file in opened if file is not None}


def read_wheel(wheel: Path) -> dict[str, bytes]:
    """Returns the files of a wheel, without its metadata."""
    with zipfile.ZipFile(wheel) as file:
        return {name: file.read(name) for name in file.namelist() if ".dist-info/" not in name}


def packaged(sources: Iterable[str]) -> set[str]:
    """Returns the files that a wheel must have: the package, without the sources of the compiled kernel."""
    files = {name.removeprefix("src/") for name in sources if name.startswith("src/turnout/")}
    return {name for name in files if not name.endswith((".pyx", ".hpp"))}


def naming_the_machine(files: dict[str, bytes], copy: Copy) -> list[str]:
    """Returns the files that contain the name of a folder of this machine."""
    folders = [str(folder).encode() for folder in (ROOT, copy.root)]
    return [name for name, content in files.items() if any(folder in content for folder in folders)]


@pytest.fixture(scope="module")
def sources(copy: Copy) -> dict[str, bytes]:
    return read_sources(copy.build("build_sdist")[0])


def test_the_source_distribution_is_the_repository_and_nothing_else(copy: Copy, sources: dict[str, bytes]) -> None:
    assert {"Makefile", ".ci/run", "docs/index.md", "src/turnout/kernel/_fast.pyx", "tests/syncs.c"} <= set(sources)
    if (ROOT / ".git").exists():
        assert set(sources) - {"PKG-INFO", "setup.cfg"} == known_files()
    assert naming_the_machine(sources, copy) == []


def test_without_a_compiler_the_wheel_is_for_every_platform_and_says_so_once(
    copy: Copy, sources: dict[str, bytes], tmp_path: Path
) -> None:
    wheel, printed = copy.build("build_wheel", CC="/nowhere/cc", CXX="/nowhere/c++", PATH="/nowhere")
    assert wheel.name == f"turnout-{turnout.__version__}-py3-none-any.whl"
    files = read_wheel(wheel)
    assert set(files) == packaged(sources) >= {"turnout/py.typed", "turnout/dashboard/static/index.html"}
    assert naming_the_machine(files, copy) == []
    assert printed.count("turnout: the compiled kernel was not built (") == 1
    assert "For the compiled kernel, install a C++ compiler and install turnout again." in printed

    installed = tmp_path / "installed"
    shutil.unpack_archive(wheel, installed, "zip")
    done = subprocess.run(
        [sys.executable, "-m", "turnout", "--version"],
        env={**os.environ, "PYTHONPATH": str(installed)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == f"turnout {turnout.__version__} (numpy kernel)\n"
    assert done.stderr.startswith("note: the compiled kernel is not installed (")
    assert len(done.stderr.splitlines()) == 1


def test_the_kernel_of_a_wheel_is_compiled_from_its_sources(copy: Copy, sources: dict[str, bytes]) -> None:
    compiler = copy.out.parent / "compiler"
    compiler.write_text(COMPILER)
    compiler.chmod(0o755)
    variables = {name: str(compiler) for name in ("CC", "CXX", "LDSHARED", "LDCXXSHARED")}
    wheel, _ = copy.build("build_wheel", **variables, TURNOUT_BUILD_KERNEL="compiled")
    assert wheel.name.startswith(f"turnout-{turnout.__version__}-cp311-abi3-")
    files = read_wheel(wheel)
    assert set(files) - packaged(sources) == {"turnout/kernel/_fast.abi3.so"}
    compiled = next(content.decode() for name, content in files.items() if "_fast.abi3" in name)
    assert LEFT_BEHIND not in compiled
    assert "translated from the sources of the copy" in compiled
    assert "-DPy_LIMITED_API=0x030B0000" in compiled
    assert "-ffp-contract=off" in compiled


def test_a_kernel_that_was_requested_and_cannot_be_built_is_an_error(copy: Copy) -> None:
    with pytest.raises(AssertionError, match="the compiled kernel was requested, and cannot be built"):
        copy.build("build_wheel", CC="/nowhere/cc", CXX="/nowhere/c++", TURNOUT_BUILD_KERNEL="compiled")


def test_an_unknown_kernel_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TURNOUT_BUILD_KERNEL", "fortran")
    with pytest.raises(SystemExit, match="TURNOUT_BUILD_KERNEL must be 'numpy' or 'compiled', not 'fortran'"):
        requested_kernel()


def test_an_editable_build_without_a_compiler_removes_the_kernel_of_an_earlier_build(copy: Copy) -> None:
    assert list(copy.root.glob("src/turnout/kernel/_fast*.so"))
    copy.build("build_editable", CC="/nowhere/cc", CXX="/nowhere/c++")
    assert not list(copy.root.glob("src/turnout/kernel/_fast*.so"))

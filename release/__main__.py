"""`python -m release`: builds and checks the package, in the root of a checkout or of a source distribution."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import tomllib
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import typer

from release.build import ROOT, Distributions, build, head, uncommitted_changes
from release.check import build_twice, check_contents, check_every_python
from release.lowest import NEEDED_BY_THE_LOWEST, lowest_requirements

#: Platforms for which cibuildwheel builds wheels.
PLATFORMS = ("linux", "macos", "windows")
app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, no_args_is_help=True)
OutOption = Annotated[Path, typer.Option(help="Folder for the distributions.")]


@app.command("build")
def build_command(out: OutOption = ROOT / "dist") -> None:
    """Build the source distribution, a wheel with the compiled kernel, and one for every platform.

    Example: python -m release build
    """
    _name_uncommitted()
    with TemporaryDirectory() as work:
        _print(build(out, Path(work), head()))


@app.command()
def check(
    python: Annotated[list[str], typer.Option(help="An interpreter; repeatable. Missing ones are skipped.")],
    out: OutOption = ROOT / "dist",
) -> None:
    """Build twice and compare, check contents and metadata, install with every Python, and use what is installed.

    Example: python -m release check --python python3.11 --python python3.12
    """
    _name_uncommitted()
    with TemporaryDirectory() as folder:
        work = Path(folder).resolve()
        distributions = build_twice(out, work)
        print("Both builds of this commit have the same bytes.", flush=True)
        check_contents(distributions, ROOT, work)
        print("The distributions contain what they must, and nothing else.", flush=True)
        subprocess.run([sys.executable, "-m", "twine", "check", "--strict", *map(str, distributions)], check=True)
        for platform in PLATFORMS:
            subprocess.run(
                [sys.executable, "-m", "cibuildwheel", "--print-build-identifiers", "--platform", platform, str(ROOT)],
                check=True,
            )
        check_every_python(distributions, python, work)
    _print(distributions)


@app.command()
def lowest() -> None:
    """Print the lowest versions of all dependencies that pyproject.toml allows, as pins.

    Example: python -m release lowest
    """
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    print(*lowest_requirements(project), *NEEDED_BY_THE_LOWEST, sep="\n")


def _name_uncommitted() -> None:
    if changed := uncommitted_changes():
        print(f"warning: not in the distributions, because not committed: {', '.join(changed)}", file=sys.stderr)


def _print(distributions: Distributions) -> None:
    for file in distributions:
        print(f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file}")


if __name__ == "__main__":
    app()

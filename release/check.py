"""Checks the distributions as a stranger meets them: in new environments, outside the checkout."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import gettempdir

from release.build import Distributions, build, git, head, is_checkout, unpack
from release.contents import faults_of_sources, faults_of_wheel, machine_paths, read_sources, read_wheel

#: What may differ between two machines that build the same commit.
_CONDITIONS: tuple[Mapping[str, str], ...] = (
    {"TZ": "UTC", "LC_ALL": "C", "PYTHONHASHSEED": "1"},
    {"TZ": "Asia/Kathmandu", "LC_ALL": "C.UTF-8", "PYTHONHASHSEED": "2"},
)
_UMASKS = (0o022, 0o077)
_HIDDEN = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "TURNOUT_KERNEL", "TURNOUT_BUILD_KERNEL", "PIP_CONSTRAINT")


def build_twice(out: Path, work: Path) -> Distributions:
    """Builds in two folders under different conditions, and refuses builds that differ."""
    commit = head()
    builds = []
    for number, (conditions, umask) in enumerate(zip(_CONDITIONS, _UMASKS, strict=True)):
        folder = work / ("first" if number == 0 else "second/with/a/longer/path")
        before, old_umask = dict(os.environ), os.umask(umask)
        os.environ.update(conditions)
        try:
            builds.append(build(folder / "dist", folder / "work", commit))
        finally:
            os.umask(old_umask)
            os.environ.clear()
            os.environ.update(before)
    for first, second in zip(*builds, strict=True):
        if first.name != second.name or first.read_bytes() != second.read_bytes():
            raise SystemExit(f"{first} and {second} were built from the same commit, and differ")
    out.mkdir(parents=True, exist_ok=True)
    return Distributions(*(Path(shutil.copy(file, out)) for file in builds[0]))


def check_contents(distributions: Distributions, *folders: Path) -> None:
    """Refuses missing files, files too many, and names of these folders of this machine in any of them."""
    sources = read_sources(distributions.sources)
    tracked = git("ls-files", "-z").rstrip("\0").split("\0") if is_checkout() else None
    faults = [f"{distributions.sources.name}: {fault}" for fault in faults_of_sources(sources, tracked)]
    faults += machine_paths(sources, folders)
    for wheel, compiled in ((distributions.compiled, True), (distributions.numpy, False)):
        files = read_wheel(wheel)
        built = {name: content for name, content in files.items() if name.endswith((".so", ".pyd"))}
        found = faults_of_wheel(files, sources, compiled=compiled) + machine_paths(files, folders)
        found += machine_paths(built, [Path.home(), Path(gettempdir())])
        faults += [f"{wheel.name}: {fault}" for fault in found]
    if faults:
        raise SystemExit("\n".join(faults))


def find_pythons(names: Sequence[str]) -> dict[str, str]:
    """Returns the versions of those interpreters that exist and start, by name or path."""
    found = {}
    for name in names:
        program = shutil.which(name)
        if program is None:
            continue
        command = [program, "-c", "import platform; print(platform.python_version())"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode == 0:
            found[name] = done.stdout.strip()
    return found


def check_installation(python: str, distributions: Distributions, sources: Path, folder: Path) -> dict[str, str]:
    """Installs the wheels with their dependencies in a new environment, one after the other, and uses them.

    Args:
        python: The interpreter.
        distributions: What was built.
        sources: The unpacked source distribution, for its examples.
        folder: An empty folder, outside every checkout.

    Returns:
        A digest of the selections with each kernel.
    """
    run([shutil.which(python) or python, "-m", "venv", "environment"], folder)
    binaries = folder / "environment" / ("Scripts" if sys.platform == "win32" else "bin")
    own, turnout = str(binaries / "python"), str(binaries / "turnout")
    install = [own, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    run([*install, f"{distributions.compiled}[plots]"], folder)
    digests = {"compiled": use_installed(own, turnout, "compiled", sources, folder)}
    run([*install, "--force-reinstall", "--no-deps", str(distributions.numpy)], folder)
    digests["numpy"] = use_installed(own, turnout, "numpy", sources, folder)
    return digests


def use_installed(python: str, turnout: str, kernel: str, sources: Path, folder: Path) -> str:
    """Runs the commands and the program with which a stranger starts; returns the digest of the selections."""
    run([python, "-m", "pip", "check"], folder)
    version = run([turnout, "--version"], folder)
    if f"({kernel} kernel)" not in version:
        raise SystemExit(f"turnout --version prints {version!r}, and not the {kernel} kernel")
    run([turnout, "--help"], folder)
    report = folder / f"{kernel}.html"
    run([turnout, "demo", "--seeds", "2", "--rounds", "60", "--report", str(report)], folder)
    if not report.stat().st_size:
        raise SystemExit("turnout demo wrote no report")
    started = folder / kernel
    started.mkdir()
    run([python, str(first_program(sources, started))], started)
    return run([python, str(sources / "release" / "self_check.py"), kernel], started).strip()


def first_program(sources: Path, folder: Path) -> Path:
    """Returns the program with which a stranger starts: examples/quickstart.py, or the first one of the README."""
    quickstart = sources / "examples" / "quickstart.py"
    if quickstart.exists():
        return quickstart
    block = re.search(r"^```python\n(.*?)^```$", (sources / "README.md").read_text(), flags=re.DOTALL | re.MULTILINE)
    if block is None:
        raise SystemExit("the README has no program")
    program = folder / "first_program.py"
    program.write_text(block[1])
    return program


def check_every_python(distributions: Distributions, names: Sequence[str], work: Path) -> None:
    """Installs both wheels with every Python that is found; all must select the same clients."""
    pythons = find_pythons(names)
    if not pythons:
        raise SystemExit(f"none of these interpreters was found: {', '.join(names)}")
    unpack(distributions.sources, work / "sources")
    (sources,) = (work / "sources").iterdir()
    digests = {}
    for name, version in pythons.items():
        folder = work / version
        folder.mkdir()
        digests[version] = check_installation(name, distributions, sources, folder)
        print(f"Python {version}: both wheels work; selections {digests[version]}", flush=True)
        shutil.rmtree(folder)
    for name in names:
        if name not in pythons:
            print(f"{name}: not found, not checked")
    if len({digest for found in digests.values() for digest in found.values()}) > 1:
        raise SystemExit(f"the selections differ: {digests}")


def run(command: Sequence[str], folder: Path) -> str:
    """Runs a program in a folder, without the variables of this environment, and returns its standard output."""
    environment = {key: value for key, value in os.environ.items() if key not in _HIDDEN}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{done.stdout}{done.stderr}\n{' '.join(command)} failed with status {done.returncode}")
    return done.stdout

"""Tries mutants in parallel, and keeps what was found, so that a measurement can be continued."""

from __future__ import annotations

import hashlib
import json
import queue
import tempfile
import threading
import tomllib
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mutants.generate import Mutant, mutants_of, sample
from mutants.packages import Package, modules_of, nearest_tests
from mutants.selection import Calls, select_tests
from mutants.workspace import Workspace

#: A mutant may take so many times as long as the same tests without one.
SLOWER = 4
#: So many tests are run before all others: most mutants are noticed by one of them, and few files must be imported.
FIRST = 25
#: What a mutant can be found to be; only survivors were not noticed.
NOTICED = ("killed", "timeout", "crashed")

Key = tuple[str, str, str, str]


@dataclass(frozen=True, slots=True)
class Trial:
    """A mutant and what was found: one of NOTICED, "survived" or "accepted"."""

    package: str
    mutant: Mutant
    outcome: str


def score(trials: Iterable[Trial]) -> float | None:
    """Returns the share of noticed mutants among those that are not accepted; None if there are none."""
    judged = [trial.outcome in NOTICED for trial in trials if trial.outcome != "accepted"]
    return sum(judged) / len(judged) if judged else None


@dataclass(frozen=True, slots=True)
class Measurement:
    """What was found about all mutants, and the test files that fail without one, which were not used."""

    trials: list[Trial]
    failing: list[str]


class Results:
    """What earlier measurements have found, in a file with one JSON object per line.

    A survivor is tried again after any change of the sources or tests, and a noticed mutant only after a change of its
    module.
    """

    def __init__(self, path: Path, fingerprint: str) -> None:
        self.path, self.fingerprint = path, fingerprint
        self._mutex = threading.Lock()
        self._outcomes: dict[tuple[Key, str], tuple[str, str]] = {}
        for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else []:
            self._remember(json.loads(line))

    def outcome(self, mutant: Mutant) -> str | None:
        """Returns what was found about a mutant, if that still counts."""
        outcome, fingerprint = self._outcomes.get((mutant.key, _digest(mutant.source)), (None, ""))
        return None if outcome == "survived" and fingerprint != self.fingerprint else outcome

    def add_outcome(self, mutant: Mutant, outcome: str) -> None:
        """Writes what was found about a mutant."""
        found = {"outcome": outcome, "fingerprint": self.fingerprint}
        self._write({"mutant": mutant.key, "line": mutant.line, "source": _digest(mutant.source), **found})

    def _write(self, entry: dict[str, Any]) -> None:
        with self._mutex:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(entry, ensure_ascii=False) + "\n")
            self._remember(json.loads(json.dumps(entry)))

    def _remember(self, entry: dict[str, Any]) -> None:
        module, where, before, after = entry["mutant"]
        key: Key = (module, where, before, after)
        self._outcomes[key, entry["source"]] = (entry["outcome"], entry["fingerprint"])


@dataclass(frozen=True, slots=True)
class Settings:
    """What is measured, and how.

    Attributes:
        root: The checkout.
        package: The name of the top package, which is in `src`.
        count: The number of mutants of each package.
        seed: The seed of the sample.
        workers: The number of mutants that are tried at the same time.
        budget: The seconds that the tests of a mutant take at most, without the mutant.
        calls: The folder in which is kept what the tests call.
        accepted: The keys of the accepted mutants.
        options: Further options of pytest.
        longest_file: The seconds after which a test file without a mutant is stopped, and not used.
        grace: A mutant counts as noticed if its tests take SLOWER times as long as without it, and so many seconds.
    """

    root: Path
    package: str
    count: int
    seed: int
    workers: int
    budget: float
    accepted: frozenset[Key]
    calls: Path
    options: tuple[str, ...] = ()
    grace: float = 20.0
    longest_file: float = 900.0

    @property
    def source(self) -> Path:
        """The folder of the top package."""
        return self.root / "src" / self.package


def read_accepted(path: Path) -> frozenset[Key]:
    """Returns the keys of the mutants in a file of accepted ones, each of which needs a reason."""
    entries = tomllib.loads(path.read_text(encoding="utf-8")).get("accepted", [])
    for entry in entries:
        if not entry.get("why"):
            raise ValueError(f"{path.name}: {entry} has no why: say why no test can notice it")
    return frozenset((entry["module"], entry["where"], entry["before"], entry["after"]) for entry in entries)


def fingerprint_of(root: Path) -> str:
    """Returns a digest of all sources and tests."""
    digest = hashlib.sha256()
    for folder in ("src", "tests"):
        for file in sorted((root / folder).rglob("*.py")):
            digest.update(f"{file.relative_to(root)}\n".encode() + file.read_bytes())
    return digest.hexdigest()[:16]


def choose(settings: Settings, package: Package) -> list[Mutant]:
    """Returns the sample of the mutants of a package."""
    modules = modules_of(settings.source, package)
    mutants = [mutant for module in modules for mutant in mutants_of(settings.source, module)]
    return sample(mutants, settings.count, settings.seed)


def measure(
    settings: Settings,
    packages: Sequence[Package],
    results: Results,
    watch: Callable[[Trial], None],
    note: Callable[[str], None] = lambda _: None,
) -> Measurement:
    """Tries the mutants of some packages that have not been tried yet; returns what is known about all of them.

    Args:
        settings: What is measured, and how.
        packages: The packages.
        results: What earlier measurements have found; it is extended.
        watch: Is called after each mutant.
        note: Is called with what is done before the first mutant.

    Raises:
        RuntimeError: If no test can be used for a mutant.
    """
    trials, untried = [], []
    for package in packages:
        for mutant in choose(settings, package):
            known = "accepted" if mutant.key in settings.accepted else results.outcome(mutant)
            if known is None:
                untried.append((package, mutant))
            else:
                trials.append(Trial(package.name, mutant, known))
    if not untried:
        return Measurement(trials, [])
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="mutants-")))
        pool = stack.enter_context(ThreadPoolExecutor(settings.workers))
        workspaces: queue.SimpleQueue[Workspace] = queue.SimpleQueue()
        for worker in range(settings.workers):
            workspace = Workspace(settings.root, folder.resolve() / str(worker), settings.options)
            workspace.check_imports(settings.package)
            workspaces.put(workspace)
            stack.callback(workspace.stopped.set)
        # After an error or Ctrl-C, nothing further is begun, and what is being tried is stopped.
        stack.callback(pool.shutdown, wait=False, cancel_futures=True)
        tester = Tester(settings, workspaces)
        files = {file for package, mutant in untried for file in tester.files(package, mutant)}
        missing = sorted(file for file in files if not tester.calls.is_known(file))
        for number, _ in enumerate(pool.map(tester.record, missing), start=1):
            note(f"recorded {number} of {len(missing)} test files")

        def try_mutant(task: tuple[Package, Mutant]) -> Trial:
            with tester.workspace() as workspace:
                trial = Trial(task[0].name, task[1], tester.outcome(workspace, *task))
            results.add_outcome(trial.mutant, trial.outcome)
            watch(trial)
            return trial

        trials += pool.map(try_mutant, untried)
        return Measurement(trials, sorted(tester.failing))


class Tester:
    """Selects the tests of a mutant, and runs them.

    Attributes:
        calls: What the tests call.
        failing: The tests that fail, and the files that cannot be run, without a mutant; they say nothing about
            mutants. What they printed, by their names.
    """

    def __init__(self, settings: Settings, workspaces: queue.SimpleQueue[Workspace]) -> None:
        self.settings, self._workspaces = settings, workspaces
        self.calls = Calls(settings.calls)
        self.failing: dict[str, str] = {}

    @contextmanager
    def workspace(self) -> Iterator[Workspace]:
        """Borrows a workspace that nobody else uses."""
        workspace = self._workspaces.get()
        try:
            yield workspace
        finally:
            self._workspaces.put(workspace)

    def files(self, package: Package, mutant: Mutant) -> list[Path]:
        """Returns the test files that may notice a mutant."""
        settings = self.settings
        return nearest_tests(settings.root, settings.source, package, settings.source / mutant.module)

    def record(self, file: Path) -> None:
        """Records what the tests of a file call."""
        with self.workspace() as workspace:
            trouble = self.calls.record(workspace, self.settings.source, file, self.settings.longest_file)
        if trouble is not None:
            self.failing[str(file.relative_to(self.settings.root))] = trouble

    def outcome(self, workspace: Workspace, package: Package, mutant: Mutant) -> str:
        """Returns what the tests say about a mutant."""
        files = [self.calls.of(file) for file in self.files(package, mutant)]
        self.failing |= {name: "" for file in files for name in file.failed}
        tests = select_tests(mutant, files, self.settings.budget)
        if not tests:
            outputs = "".join(f"\n{name} fails without a mutant:\n{text}" for name, text in self.failing.items())
            raise RuntimeError(f"no tests of {package.name} pass: mend them{outputs}")
        with workspace.changed(self.settings.source / mutant.module, mutant.source):
            for part in (tests[:FIRST], tests[FIRST:]):
                limit = SLOWER * sum(test.seconds for test in part) + self.settings.grace
                if part and (kind := workspace.run([test.name for test in part], limit).kind) in NOTICED:
                    return kind
        return "survived"


def _digest(source: bytes) -> str:
    return hashlib.sha256(source).hexdigest()[:16]

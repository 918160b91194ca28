"""The mutation tool, with a tiny package whose tests notice some faults and miss others."""

from __future__ import annotations

import ast
import json
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from mutants import __main__ as command
from mutants import measure as measure_module
from mutants.calls import function_name
from mutants.generate import Mutant, mutants_of, sample
from mutants.measure import Results, Settings, Trial, fingerprint_of, measure, read_accepted, score
from mutants.packages import PACKAGES, Package, modules_of, nearest_tests
from mutants.selection import Calls, RecordedFile, RecordedTest, select_tests
from mutants.workspace import Workspace
from waiting import wait_until

ROOT = Path(__file__).parents[1]
TINY = Package("core", "core", ("tests/core",), 0.95)
MODULE = '''
"""A module with 1 fault per line."""


def is_adult(age: int, limit: int = 18) -> bool:
    return age >= limit


def larger(a: int, b: int) -> int:
    return a if a > b else b
'''
TESTS = """
from tiny.core.ages import is_adult, larger


def test_adults() -> None:
    assert is_adult(18, 18)
    assert not is_adult(17, 18)


def test_larger() -> None:
    assert larger(2, 3) == 3
    assert larger(3, 2) == 3
"""


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout with the package `tiny` and its tests, which need no plugins of pytest."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    root = tmp_path / "checkout"
    files = {
        "pyproject.toml": "[tool.pytest.ini_options]\naddopts = []\n",
        "src/tiny/__init__.py": "",
        "src/tiny/core/__init__.py": "",
        "src/tiny/core/ages.py": MODULE,
        "tests/core/test_ages.py": TESTS,
    }
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def settings_of(root: Path, **changes: object) -> Settings:
    fields = {
        "count": 100,
        "seed": 1,
        "workers": 2,
        "budget": 600.0,
        "grace": 600.0,
        "accepted": frozenset(),
        "calls": root / "build" / "calls",
        **changes,
    }
    return Settings(root=root, package="tiny", **fields)  # type: ignore[arg-type]


def results_of(root: Path) -> Results:
    return Results(root / "build" / "mutants.jsonl", fingerprint_of(root))


def mutate(tmp_path: Path, code: str) -> list[Mutant]:
    module = tmp_path / "module.py"
    module.write_text(textwrap.dedent(code), encoding="utf-8")
    return mutants_of(tmp_path, module)


def after(tmp_path: Path, code: str) -> list[str]:
    return sorted(mutant.after for mutant in mutate(tmp_path, code))


def has_ended(process: int) -> bool:
    """Returns whether a process is gone, or a zombie that nobody has reaped yet."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


# Generation


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("a < b", ["a <= b", "a >= b"]),
        ("a <= b", ["a < b", "a > b"]),
        ("a > b", ["a <= b", "a >= b"]),
        ("a == b", ["a != b"]),
        ("a is not None", ["a is None"]),
        ("a not  in b", ["a in b"]),
        ("a < b < c", ["a < b <= c", "a < b >= c", "a <= b < c", "a >= b < c"]),
        ("(a) < (b)", ["(a) <= (b)", "(a) >= (b)"]),
        ("a and b and c", ["a and b or c", "a or b and c"]),
        ("not a", ["a"]),
        ("-a", ["a"]),
        ("a + b", ["a - b"]),
        ("a * b // c", ["a * b * c", "a / b // c"]),
        ("a -= b", ["a += b"]),
        ("min(a, b)", ["max(a, b)"]),
        ("np.maximum(a, b).any()", ["np.maximum(a, b).all()", "np.minimum(a, b).any()"]),
        ("f(7)", ["f(8)"]),
        ("f(0.25, 0.0)", ["f(0.25, 1.0)", "f(0.5, 0.0)"]),
        ("f(verbose=True)", ["f(verbose=False)"]),
        ("LIMIT = 64", ["LIMIT = 65"]),
        ("def f(a=3): ...", ["def f(a=4): ..."]),
        ("f('·', 1)", ["f('·', 2)"]),
    ],
)
def test_every_kind_of_fault_is_made(tmp_path: Path, code: str, expected: list[str]) -> None:
    assert after(tmp_path, code) == expected


@pytest.mark.parametrize(
    "code",
    [
        '"""1 < 2"""',
        "raise ValueError(a < 1)",
        "assert a < 1",
        "f'{a < 1:.2f}'",
        "a = f'{b}' + c",
        "x: Literal[1, 2]",
        "Kind = Literal[1, 2]",
        "Kind: TypeAlias = Literal[1, 2]",
        "def f(a: Literal[1]) -> Literal[2]: ...",
        "@dataclass(frozen=True, order=True)\nclass A: ...",
        "zip(a, b, strict=True)",
        "log.warning('%s', 1)",
        "__all__ = ['a'] + b",
        "from a import b",
        "if TYPE_CHECKING:\n    a = 1",
    ],
)
def test_no_fault_is_made_in_texts_types_and_checks(tmp_path: Path, code: str) -> None:
    assert after(tmp_path, code) == []


def test_a_mutant_names_its_function_its_line_and_all_changed_lines(tmp_path: Path) -> None:
    code = """
    class A:
        def f(self, a, b):
            return (
                a  # or: in the comment
                or b
            )
    """
    (mutant,) = mutate(tmp_path, code)
    assert (mutant.module, mutant.where, mutant.line) == ("module.py", "A.f", 6)
    assert (mutant.before, mutant.after) == ("or b", "and b")
    ast.parse(mutant.source)


def test_a_sample_depends_on_the_seed_and_contains_smaller_ones(tmp_path: Path) -> None:
    mutants = mutate(tmp_path, "\n".join(f"a{number} = {number}" for number in range(50)))
    assert len(mutants) == 50
    first = sample(mutants, 20, 1)
    assert first == sample(mutants[::-1], 20, 1)
    assert sample(mutants, 10, 1) == first[:10]
    assert sample(mutants, 20, 2) != first
    assert sorted(mutant.line for mutant in sample(mutants, 99, 1)) == list(range(1, 51))


def test_a_mutant_stays_in_the_sample_when_other_lines_change(tmp_path: Path) -> None:
    lines = [f"a{number} = {number}" for number in range(50)]
    before = {mutant.key for mutant in sample(mutate(tmp_path, "\n".join(lines)), 20, 1)}
    changed = {mutant.key for mutant in sample(mutate(tmp_path, "\n".join(["", "import b", *lines])), 20, 1)}
    assert before == changed


# Tests of a module


def test_the_nearest_tests_come_first(checkout: Path) -> None:
    (checkout / "tests/core/deep").mkdir()
    (checkout / "src/tiny/core/deep").mkdir()
    (checkout / "src/tiny/core/deep/times.py").touch()
    names = {"a": "", "z": "from tiny.core.deep import times\n", "deep/other": "", "deep/times": ""}
    for name, text in names.items():
        folder, _, stem = name.rpartition("/")
        (checkout / "tests/core" / folder / f"test_{stem}.py").write_text(text)
    (checkout / "tests/elsewhere").mkdir()
    (checkout / "tests/elsewhere/test_far.py").write_text("import tiny.core.deep.times\n")
    (checkout / "tests/elsewhere/test_times.py").touch()
    found = nearest_tests(checkout, checkout / "src/tiny", TINY, checkout / "src/tiny/core/deep/times.py")
    assert [file.stem for file in found] == ["test_times", "test_z", "test_far", "test_other", "test_a", "test_ages"]


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.name)
def test_every_package_has_modules_and_tests(package: Package) -> None:
    assert len(modules_of(ROOT / "src" / "turnout", package)) > 5
    assert all((ROOT / path).exists() for path in package.tests)
    assert 0.9 <= package.least <= 1


@pytest.mark.parametrize(
    "package",
    [PACKAGES[0], *(pytest.param(package, marks=pytest.mark.thorough) for package in PACKAGES[1:])],
    ids=lambda package: package.name,
)
def test_every_package_has_tests_near_its_modules(package: Package) -> None:
    source = ROOT / "src" / "turnout"
    assert len(nearest_tests(ROOT, source, package, modules_of(source, package)[-1])) > 3


# Tests of a mutant

SHARING = """
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from tiny.core.ages import is_adult, larger


@pytest.fixture(scope="module")
def adult():
    return is_adult(18)


@pytest.fixture(scope="module")
def pool():
    with ThreadPoolExecutor(1) as executor:
        yield executor


def test_new_worker(pool):
    assert pool.submit(lambda: 1).result() == 1


def test_old_worker(pool):
    assert pool.submit(larger, 1, 2).result() == 2


def test_first(adult):
    assert adult


def test_second():
    pass


def test_thread():
    thread = threading.Thread(target=lambda: [larger(1, 2) for _ in range(2)])
    thread.start()
    thread.join()


def test_failing():
    assert larger(1, 2) == 1
"""


def test_the_calls_of_every_test_are_recorded(checkout: Path, tmp_path: Path) -> None:
    """Calls of threads count, also of those that a former test began, and those of a module's fixture for all tests."""
    file = checkout / "tests/core/test_sharing.py"
    file.write_text(SHARING)
    calls, workspace = Calls(tmp_path / "calls"), Workspace(checkout, tmp_path / "copy")
    assert not calls.is_known(file)
    assert calls.record(workspace, checkout / "src/tiny", file, 300.0) is None
    found = calls.of(file)
    assert found.failed == ("tests/core/test_sharing.py::test_failing",)
    adult, larger = "core/ages.py:is_adult", "core/ages.py:larger"
    assert {test.name.rpartition("::")[2]: test.calls for test in found.tests} == {
        "test_first": {adult},
        "test_second": {adult},
        "test_new_worker": {adult},
        "test_old_worker": {adult, larger},
        "test_thread": {adult, larger},
    }
    assert all(test.seconds >= 0 for test in found.tests)


def test_functions_are_named_as_mutants_name_them() -> None:
    def outer() -> list[Callable[[], str]]:
        return [lambda: "inner" for _ in range(1)]

    (inner,) = outer()
    source = str(Path(__file__).parent)
    name = "test_mutants.py:test_functions_are_named_as_mutants_name_them.outer"
    assert function_name(outer.__code__, f"{source}/") == name
    assert function_name(inner.__code__, f"{source}/") == name
    assert function_name(outer.__code__, f"{source}/other/") is None


def recorded(name: str, seconds: float, *calls: str) -> RecordedTest:
    return RecordedTest(name, seconds, frozenset(calls))


def names_for(where: str, files: list[RecordedFile], budget: float = 100.0) -> list[str]:
    mutant = Mutant("fleet.py", where, 1, "", "", b"")
    return [test.name for test in select_tests(mutant, files, budget)]


def test_tests_that_call_the_function_come_first_then_their_files() -> None:
    slow, fast = recorded("slow", 9.0, "fleet.py:Fleet.close"), recorded("fast", 1.0, "fleet.py:Fleet.close.inner")
    beside, similar = recorded("beside", 0.5), recorded("similar", 0.1, "fleet.py:Fleet.close_all")
    files = [RecordedFile((slow, beside), ()), RecordedFile((fast,), ()), RecordedFile((similar,), ())]
    assert names_for("Fleet.close", files) == ["fast", "slow", "beside"]
    assert names_for("Fleet.close", files, budget=2.0) == ["fast", "beside"]
    assert names_for("Fleet.close", files, budget=0.1) == ["fast"], "one test is run in any case"
    assert names_for("", files) == ["similar", "fast", "slow", "beside"], "a constant of the module"
    assert names_for("Fleet.open", files) == ["similar", "fast", "slow", "beside"], "no test calls it"
    other = [RecordedFile((recorded("z", 1.0, "other.py:f"), recorded("a", 1.0, "other.py:f")), ())]
    assert names_for("Fleet.close", other) == ["a", "z"], "no test calls anything in the module"
    assert names_for("Fleet.close", [RecordedFile((), ())]) == []


def test_a_test_that_calls_little_else_comes_before_faster_ones_that_call_much() -> None:
    broad = [
        recorded(f"broad {number}", 0.5, "fleet.py:Fleet.close", "a.py:f", "b.py:g", "c.py:h") for number in (1, 2)
    ]
    files = [RecordedFile((*broad, recorded("specific", 1.0, "fleet.py:Fleet.close")), ())]
    assert names_for("Fleet.close", files) == ["specific", "broad 1", "broad 2"]
    assert names_for("Fleet.close", files, budget=1.5) == ["specific", "broad 1"]


# Measurement

#: The mutants of MODULE, and what its tests notice: nobody tests the default, and equal numbers have no larger one.
FOUND = {
    "def is_adult(age: int, limit: int = 19) -> bool:": "survived",
    "return age > limit": "killed",
    "return age < limit": "killed",
    "return a if a >= b else b": "survived",
    "return a if a <= b else b": "killed",
}
EQUIVALENT = ("core/ages.py", "larger", "return a if a > b else b", "return a if a >= b else b")


def outcomes_of(trials: list[Trial]) -> dict[str, str]:
    return {trial.mutant.after: trial.outcome for trial in trials}


@pytest.mark.thorough
def test_a_measurement_finds_what_the_tests_notice_and_is_continued_later(checkout: Path) -> None:
    before, seen = fingerprint_of(checkout), list[Trial]()
    trials = measure(settings_of(checkout), [TINY], results_of(checkout), seen.append).trials
    assert outcomes_of(trials) == outcomes_of(seen) == FOUND
    assert score(trials) == 3 / 5
    assert fingerprint_of(checkout) == before, "the checkout itself never changes"
    assert not list(checkout.rglob("__pycache__"))

    seen.clear()
    again = measure(settings_of(checkout), [TINY], results_of(checkout), seen.append).trials
    assert (outcomes_of(again), seen) == (FOUND, []), "nothing is tried twice"

    tests = checkout / "tests/core/test_ages.py"
    tests.write_text(f"{TESTS}\n\ndef test_default() -> None:\n    assert is_adult(18)\n")
    settings = settings_of(checkout, accepted=frozenset([EQUIVALENT]))
    final = measure(settings, [TINY], results_of(checkout), seen.append).trials
    default = "def is_adult(age: int, limit: int = 19) -> bool:"
    assert outcomes_of(seen) == {default: "killed"}, "only survivors that are not accepted are tried again"
    assert outcomes_of(final) == {**FOUND, default: "killed", EQUIVALENT[3]: "accepted"}
    assert score(final) == 1.0


def test_tests_after_the_first_ones_notice_mutants_too(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fast tests come first; the first mutant is noticed by the slow one only, the second by none."""
    monkeypatch.setattr(measure_module, "FIRST", 1)
    tests = checkout / "tests/core/test_ages.py"
    tests.write_text(
        f"import time\n{TESTS}\n\ndef test_default() -> None:\n    time.sleep(0.2)\n    assert is_adult(18)\n"
    )
    expected = {"def is_adult(age: int, limit: int = 19) -> bool:": "killed", EQUIVALENT[3]: "survived"}
    mutants = mutants_of(checkout / "src/tiny", checkout / "src/tiny/core/ages.py")
    accepted = frozenset(mutant.key for mutant in mutants if mutant.after not in expected)
    trials = measure(settings_of(checkout, accepted=accepted), [TINY], results_of(checkout), lambda _: None).trials
    assert expected.items() <= outcomes_of(trials).items()


def test_a_noticed_mutant_is_tried_again_if_its_module_has_changed(checkout: Path) -> None:
    results, (mutant, *_) = results_of(checkout), mutants_of(checkout, checkout / "src/tiny/core/ages.py")
    results.add_outcome(mutant, "killed")
    assert results_of(checkout).outcome(mutant) == "killed"
    (checkout / "src/tiny/core/ages.py").write_text(f"{MODULE}\n\nMORE = None\n")
    (changed, *_) = mutants_of(checkout, checkout / "src/tiny/core/ages.py")
    assert changed.key == mutant.key
    assert results_of(checkout).outcome(changed) is None


def test_a_mutant_that_never_ends_counts_as_noticed_and_leaves_no_process(checkout: Path) -> None:
    """The mutant counts upwards for ever, and has started a process that sleeps for ever."""
    (checkout / "src/tiny/core/ages.py").write_text(
        "def countdown(start):\n    while start:\n        start -= STEP\n    return start\n\n\nSTEP = True\n"
    )
    (checkout / "tests/core/test_ages.py").write_text(
        "import pathlib, subprocess, sys\n"
        "from tiny.core.ages import countdown\n\n"
        "def test_countdown():\n"
        "    sleeper = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(1e6)'])\n"
        f"    pathlib.Path({str(checkout / 'sleeper')!r}).write_text(str(sleeper.pid))\n"
        "    assert countdown(3) == 0\n"
        "    sleeper.kill()\n"
        "    sleeper.wait()\n"
    )
    trials = measure(settings_of(checkout, grace=0.0), [TINY], results_of(checkout), lambda _: None).trials
    assert outcomes_of(trials)["STEP = False"] == "timeout"
    sleeper = int((checkout / "sleeper").read_text())
    wait_until(lambda: has_ended(sleeper), "the process that the tests have started ends")
    assert score(trials) == 1.0


@pytest.mark.thorough
def test_tests_that_fail_without_a_mutant_are_named_and_not_used(checkout: Path) -> None:
    wrong = checkout / "tests/core/test_wrong.py"
    wrong.write_text("from tiny.core.ages import is_adult\n\n\ndef test_wrong() -> None:\n    assert is_adult(3)\n")
    found = measure(settings_of(checkout, count=2), [TINY], results_of(checkout), lambda _: None)
    assert len(found.trials) == 2
    assert outcomes_of(found.trials).items() <= FOUND.items()
    assert found.failing == ["tests/core/test_wrong.py::test_wrong"]
    assert not Calls(checkout / "build" / "calls").is_known(wrong), "it is tried again next time"
    (checkout / "tests/core/test_ages.py").unlink()
    with pytest.raises(RuntimeError, match=r"no tests of core pass: mend them\ntests/core/test_wrong.py::test_wrong"):
        measure(settings_of(checkout), [TINY], results_of(checkout), lambda _: None)


@pytest.mark.thorough
def test_a_test_file_that_cannot_be_imported_is_named_and_not_used(checkout: Path) -> None:
    (checkout / "tests/core/test_broken.py").write_text("import tiny.nothing\n")
    found = measure(settings_of(checkout, count=1), [TINY], results_of(checkout), lambda _: None)
    assert len(found.trials) == 1
    assert outcomes_of(found.trials).items() <= FOUND.items()
    assert found.failing == ["tests/core/test_broken.py"]


@pytest.mark.thorough
def test_a_test_file_that_does_not_end_is_not_recorded(checkout: Path, tmp_path: Path) -> None:
    file = checkout / "tests/core/test_endless.py"
    file.write_text("def test_endless():\n    while True:\n        pass\n")
    calls, workspace = Calls(tmp_path / "calls"), Workspace(checkout, tmp_path / "copy")
    trouble = calls.record(workspace, checkout / "src/tiny", file, 1.0)
    assert trouble is not None
    assert trouble.startswith("timeout after")
    assert not calls.is_known(file)
    assert calls.of(file) == RecordedFile((), ())


def test_tests_must_import_the_copy(checkout: Path, tmp_path: Path) -> None:
    workspace = Workspace(checkout, tmp_path / "copy")
    workspace.check_imports("tiny")
    with pytest.raises(RuntimeError, match=r"tests would import json from .*, not a copy"):
        workspace.check_imports("json")


def test_a_changed_file_of_the_same_size_is_compiled_again_and_restored(checkout: Path, tmp_path: Path) -> None:
    """Python recognizes outdated bytecode only by the size and the second of the last change."""
    workspace, module = Workspace(checkout, tmp_path / "copy"), checkout / "src/tiny/core/ages.py"
    copy, tests = tmp_path / "copy/src/tiny/core/ages.py", ["tests/core/test_ages.py"]
    recorded = workspace.record(checkout / "src/tiny", checkout / tests[0], tmp_path / "calls.json", 300.0)
    assert recorded.kind == "survived"
    assert list((copy.parent / "__pycache__").glob("ages.*.pyc"))
    with workspace.changed(module, MODULE.replace("a > b", "a < b").encode()):
        assert "a < b" in copy.read_text()
        assert workspace.run(tests, 300.0).kind == "killed"
    assert (copy.read_text(), copy.stat().st_mtime_ns) == (MODULE, module.stat().st_mtime_ns)
    assert workspace.run(tests, 300.0).kind == "survived"


def test_an_accepted_mutant_needs_a_reason(tmp_path: Path) -> None:
    path = tmp_path / "accepted.toml"
    entry = dict(zip(("module", "where", "before", "after"), EQUIVALENT, strict=True))
    lines = "".join(f"{key} = {json.dumps(value)}\n" for key, value in entry.items())
    path.write_text(f'[[accepted]]\n{lines}why = "equal numbers"\n')
    assert read_accepted(path) == {EQUIVALENT}
    path.write_text(f"[[accepted]]\n{lines}")
    with pytest.raises(ValueError, match="has no why"):
        read_accepted(path)


def test_every_accepted_mutant_still_exists() -> None:
    source = ROOT / "src" / "turnout"
    accepted = read_accepted(ROOT / "mutants" / "accepted.toml")
    modules = {source / module for module, *_ in accepted}
    existing = {mutant.key for module in modules for mutant in mutants_of(source, module, accepted)}
    assert accepted <= existing, f"remove from accepted.toml: {sorted(accepted - existing)}"


# The command


def test_the_command_prints_survivors_and_scores_and_fails_below_the_least_score(
    checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (checkout / "mutants").mkdir()
    (checkout / "mutants" / "accepted.toml").touch()
    monkeypatch.setattr(command, "ROOT", checkout)
    monkeypatch.setattr(command, "PACKAGE", "tiny")
    monkeypatch.setattr(command, "OPTIONS", ())
    monkeypatch.setattr(command, "PACKAGES", (TINY,))
    results = results_of(checkout)
    for mutant in mutants_of(checkout / "src/tiny", checkout / "src/tiny/core/ages.py"):
        results.add_outcome(mutant, FOUND[mutant.after])
    arguments = ["--results", str(results.path)]
    done = CliRunner().invoke(command.app, [*arguments, "--only", "core"])
    assert done.exit_code == 1
    assert done.stdout.splitlines()[-2:] == [
        "package       mutants   killed  timeout  crashed survived accepted    score",
        "core                5        3        0        0        2        0      60%, must be 95%",
    ]
    assert "core/ages.py:10 larger\n  - return a if a > b else b\n  + return a if a >= b else b\n" in done.stdout
    for mutant in mutants_of(checkout / "src/tiny", checkout / "src/tiny/core/ages.py"):
        results.add_outcome(mutant, "killed")
    done = CliRunner().invoke(command.app, arguments)
    assert done.exit_code == 0
    assert done.stdout.splitlines()[-1] == "core                5        5        0        0        0        0     100%"
    listed = CliRunner().invoke(command.app, [*arguments, "--list", "--count", "1"]).stdout.splitlines()
    assert len(listed) == 3
    unknown = CliRunner().invoke(command.app, ["--only", "cores"])
    assert unknown.exit_code == 2
    assert "there is no package 'cores': use core" in unknown.output

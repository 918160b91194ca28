"""Runs the examples as a new user would."""

from __future__ import annotations

import ast
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from documents import read_blocks
from forking import ForkServer
from notebooks import NOTEBOOKS
from turnout.live import FleetReader
from turnout.live.audit.doctor import examine
from waiting import wait_until, wait_until_gone

EXAMPLES = Path(__file__).parent.parent / "examples"
PLAIN_LOOP = EXAMPLES / "plain_loop.py"


def run_plain_loop(forks: ForkServer, folder: Path, rounds: int) -> str:
    """Runs the example in this folder and returns its output."""
    result = forks.run_script(PLAIN_LOOP, str(folder), str(rounds))
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_the_plain_loop_trains_resumes_and_keeps_its_promise(folder: Path, common_forks: ForkServer) -> None:
    output = run_plain_loop(common_forks, folder / "fleet", 10)
    assert re.search(r"^round 10: accuracy 0\.[3-9]\d\d, cohort (phone-\d\d, ){3}phone-\d\d$", output, re.MULTILINE)
    assert "round      10 is closed, no round is open" in output
    # In ten rounds a client is promised two turns at most, and may be two turns behind.
    assert re.search(r"^The promise is (kept|behind): .+\n\Z", output, re.MULTILINE)
    resumed = run_plain_loop(common_forks, folder / "fleet", 12)
    assert re.findall(r"^round (\d+):", resumed, re.MULTILINE) == ["12"]


def test_the_plain_loop_resumes_after_a_kill(folder: Path, common_forks: ForkServer) -> None:
    fleet = folder / "fleet" / "fleet.turnout"
    server = subprocess.Popen([sys.executable, str(PLAIN_LOOP), str(fleet.parent), "1000"])
    try:
        wait_until(lambda: fleet.exists() and _round_of(fleet) >= 3, "three rounds have been played")
    finally:
        server.kill()
    assert server.wait() == -signal.SIGKILL
    rounds = _round_of(fleet) + 3
    assert f"round {rounds}: accuracy" in run_plain_loop(common_forks, fleet.parent, rounds)
    assert all(finding.ok is not False for finding in examine(fleet))


def _round_of(fleet: Path) -> int:
    with FleetReader(fleet) as scheduler:
        return scheduler.round


def run_example(forks: ForkServer, name: str, *arguments: str) -> str:
    """Runs an example and returns its output."""
    result = forks.run_script(EXAMPLES / name, *arguments)
    assert result.returncode == 0, result.stderr
    assert result.stderr == ""
    return result.stdout


@pytest.mark.thorough
def test_a_tabular_model_of_ones_own_is_compared(torch_forks: ForkServer) -> None:
    header, *lines = run_example(torch_forks, "own_model_tabular.py", "--rounds", "4").splitlines()
    assert header.split()[:3] == ["policy", "seed", "accuracy"]
    assert [line.split()[:2] for line in lines] == [
        [policy, seed] for policy in ("fair-pace", "random", "fedcs") for seed in "01"
    ]
    assert all(float(line.split()[2]) > 0.4 for line in lines)


def test_a_resnet_of_ones_own_trains_and_is_saved(tmp_path: Path, torch_forks: ForkServer) -> None:
    arguments = ["--rounds", "2", "--width", "4", "--items", "10", "--workers", "1", "--save"]
    output = run_example(torch_forks, "own_model_resnet.py", *arguments, str(tmp_path / "model.pt"))
    assert re.fullmatch(r"(round [12]: accuracy 0\.\d\d\d after \d+ s\n){2}", output)
    torch = pytest.importorskip("torch")
    assert torch.load(tmp_path / "model.pt", weights_only=True)["0.inner.0.weight"].shape == (4, 1, 3, 3)


def test_the_quickstart_keeps_its_promise_and_continues_if_it_is_run_again(
    folder: Path, common_forks: ForkServer
) -> None:
    script = EXAMPLES / "quickstart.py"
    shorter = folder / "shorter.py"
    shorter.write_text(script.read_text().replace("range(100)", "range(20)"))
    for path, rounds in ((script, 100), (shorter, 120)):
        done = common_forks.run_script(path, cwd=folder)
        assert (done.stdout, done.stderr) == ("The promise is kept\n", "")
        assert _round_of(folder / "fleet.turnout") == rounds


def test_the_quickstart_is_that_of_the_readme_and_of_the_first_page() -> None:
    code = _without_docstring(EXAMPLES / "quickstart.py")
    for page in ("README.md", "docs/start.md"):
        assert code in [block.text for block in read_blocks(page)], f"{page} has other lines than quickstart.py"


@pytest.mark.thorough
def test_turns_without_rounds_are_faster_with_prices_and_keep_the_promise(common_forks: ForkServer) -> None:
    header, *lines = run_example(common_forks, "asynchronous.py", "--turns", "100").splitlines()
    assert header.split()[:3] == ["policy", "minutes", "accuracy"]
    random, fair = (line.split() for line in lines)
    assert (random[0], fair[0]) == ("random", "fair-pace")
    assert float(fair[1]) < float(random[1])
    assert int(fair[3]) > float(fair[4]) - 1  # the tolerance is one turn


def test_a_policy_of_ones_own_is_checked_and_compared(common_forks: ForkServer) -> None:
    output = run_example(common_forks, "own_policy.py", "--rounds", "60")
    checks, _, own, guarded, fair, random = output.splitlines()
    assert re.fullmatch(r"fast-so-far passes \d\d checks", checks)
    seconds = [float(re.search(r"([\d.]+) s", line)[1]) for line in (own, guarded, fair, random)]  # type: ignore[index]
    assert seconds[0] < seconds[1] < seconds[3]
    assert seconds[2] < seconds[3]


def test_every_example_is_listed_and_says_what_it_shows() -> None:
    page = (EXAMPLES / "README.md").read_text()
    linked = re.findall(r"\]\(([^)#]+)\)", page)
    for path in sorted(EXAMPLES.rglob("*")):
        if path.suffix not in (".py", ".ipynb", ".mjs") or "__pycache__" in path.parts:
            continue
        name = str(path.relative_to(EXAMPLES))
        is_app = path.parts[len(EXAMPLES.parts)].startswith("flower_") and path.parent != EXAMPLES
        assert name in linked or is_app or f"`{path.name}`" in page, f"examples/README.md does not list {name}"
        if path.suffix == ".py" and path.stem not in NOTEBOOKS:
            docstring = ast.get_docstring(ast.parse(path.read_text())) or ""
            assert docstring, f"{name} does not say what it is"
            if name in linked and path.name != "server_app.py":
                assert f"python examples/{name}" in docstring, f"{name} does not say how it is run"
                assert " needs " in docstring, f"{name} does not say what it needs"


def _without_docstring(script: Path) -> str:
    text = script.read_text()
    return text[text.index('\n"""\n') + 5 :].lstrip("\n")


def test_a_flower_network_ends_with_the_process_that_started_it() -> None:
    program = (
        "import sys, time; from flower_network import network\n"
        "with network() as net:\n"
        "    net.start('child', 'python', '-c', 'import time; time.sleep(3600)')\n"
        "    print(net.processes['child'].pid, flush=True)\n"
        "    time.sleep(3600)\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", program], cwd=EXAMPLES, stdout=subprocess.PIPE, text=True)
    with parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        parent.kill()
    wait_until_gone([child])

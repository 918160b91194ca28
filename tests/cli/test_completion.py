"""What a shell completes, as it asks for it."""

from __future__ import annotations

import subprocess

import pytest

from cli.in_process import run


def complete(*words: str) -> list[str]:
    """Returns the completions of the last word."""
    asked = {
        "_TURNOUT_COMPLETE": "complete_bash",
        "COMP_WORDS": " ".join(["turnout", *words]),
        "COMP_CWORD": str(len(words)),
    }
    return run(**asked).stdout.split()


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("si",), ["simulate"]),
        (("runs", "de"), ["delete"]),
        (("simulate", "fair-p"), ["fair-pace"]),
        (("simulate", "random", "rbc"), ["rbcsf"]),
        (("study", "train", "oor"), ["oort"]),
        (("fleet", "replay", "fleet.turnout", "--policy", "tif"), ["tifl"]),
        (("study", "leaderboard", "trac"), ["traces"]),
        (("simulate", "--world", "name="), ["name=paper", "name=traces", "name=training"]),
        (("simulate", "--world", "avail"), ["availability="]),
        (("runs", "export", "runs.turnout", "--table", "cl"), ["clients"]),
        (("simulate", "--set", "speed_w"), ["speed_weight="]),
        (("study", "reproduce", "que"), ["queues"]),
        (("study", "train", "--dataset", "cifar"), ["cifar-10"]),
        (("simulate", "--backend", "da"), ["dask"]),
        (("study", "reproduce", "--sto"), ["--store"]),
        (("simulate", "--sa"), []),
    ],
)
def test_a_shell_completes_commands_options_and_names(words: tuple[str, ...], expected: list[str]) -> None:
    assert complete(*words) == expected


def test_the_help_offers_to_install_completion() -> None:
    shown = run("--help").stdout
    assert "--install-completion" in shown
    assert "--show-completion" in shown


def test_the_script_for_bash_is_valid() -> None:
    script = run("--show-completion", _TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION="1").stdout
    if "complete" not in script:
        script = run("--show-completion", "bash", _TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION="1").stdout
    assert "_TURNOUT_COMPLETE" in script
    assert subprocess.run(["bash", "-n"], input=script, text=True, check=False).returncode == 0

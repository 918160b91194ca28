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
        (("train", "oor"), ["oort"]),
        (("replay", "fleet.turnout", "--policy", "tif"), ["tifl"]),
        (("compare", "--suite", "trac"), ["traces"]),
        (("compare", "--world", "name="), ["name=paper", "name=traces", "name=training"]),
        (("compare", "--world", "avail"), ["availability="]),
        (("compare", "--set", "rbcsf.speed"), ["rbcsf.speed_weight="]),
        (("compare", "--set", "speed_w"), ["speed_weight="]),
        (("reproduce", "que"), ["queues"]),
        (("train", "--dataset", "cifar"), ["cifar-10"]),
        (("sweep", "plan.toml", "--backend", "da"), ["dask"]),
        (("sweep", "--sto"), ["--store"]),
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

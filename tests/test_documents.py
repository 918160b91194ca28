"""Every code block of the documentation is executed, read or parsed, or states why not (see documents.py)."""

from __future__ import annotations

import csv
import doctest
import re
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

import click
import pytest

from cli.in_process import run
from documents import PAGES, ROOT, Block, Command, check_command, inline_commands, read_blocks, read_commands
from forking import ForkServer
from turnout.lab.worlds.traces.formats.files import read_traces

ServerOf: TypeAlias = Callable[[str], ForkServer]
SHORT_PAGES = {
    "README.md",
    "docs/start.md",
    "docs/scheduling.md",
    "docs/promise.md",
    "docs/service.md",
    "docs/operating.md",
}
SAME = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


@pytest.fixture
def server_of(request: pytest.FixtureRequest) -> ServerOf:
    """Returns a function that returns the server for a program. The import of tensorboardX imports torch."""

    def server_of(program: str) -> ForkServer:
        is_slow = re.search("torch|tensorboard", program) is not None
        server: ForkServer = request.getfixturevalue("torch_forks" if is_slow else "common_forks")
        return server

    return server_of


@pytest.mark.parametrize(
    "page", [pytest.param(page, marks=[] if page in SHORT_PAGES else [pytest.mark.thorough]) for page in PAGES]
)
def test_every_block_of_a_page_is_tested(
    page: str, folder: Path, monkeypatch: pytest.MonkeyPatch, server_of: ServerOf
) -> None:
    monkeypatch.chdir(folder)
    blocks = read_blocks(page)
    fences = len(re.findall(r"^ *```", (ROOT / page).read_text(), flags=re.MULTILINE))
    assert fences == 2 * sum(block.language != "indented" for block in blocks)
    for block in blocks:
        try:
            check_block(block, folder, server_of)
        except (AssertionError, click.ClickException, SyntaxError, tomllib.TOMLDecodeError) as error:
            pytest.fail(f"{page}, line {block.line}: {error}")


@pytest.mark.parametrize("page", PAGES)
def test_every_command_in_the_running_text_exists(page: str) -> None:
    for line in inline_commands(page):
        try:
            check_command(Command(line, "").arguments, partial=True)
        except (AssertionError, click.ClickException) as error:
            pytest.fail(f"{page}: `{line}`: {error}")


@pytest.mark.parametrize("page", PAGES)
def test_every_link_leads_to_a_file_and_a_heading(page: str) -> None:
    text = (ROOT / page).read_text()
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if "://" in target:
            continue
        name, _, heading = target.partition("#")
        path = (ROOT / page).parent / name if name else ROOT / page
        assert path.exists(), f"{page}: {target}"
        if heading:
            titles = re.findall(r"^#+ (.*)$", path.read_text(), flags=re.MULTILINE)
            assert heading in [re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles], target


def test_turnout_is_nowhere_installed_from_a_package_index_because_none_has_it() -> None:
    examples = [path for path in (ROOT / "examples").rglob("*") if path.suffix in (".py", ".toml", ".diff", ".service")]
    for path in (*(ROOT / page for page in PAGES), *examples):
        lines = re.findall(
            r"pip install\s+'?turnout|^\W*dependencies = .*\"turnout(?! @).*", path.read_text(), re.MULTILINE
        )
        assert lines == [], path


def test_the_index_links_every_page() -> None:
    index = (ROOT / "docs" / "index.md").read_text()
    linked = {str((ROOT / "docs" / name).resolve().relative_to(ROOT)) for name in re.findall(r"\]\(([^)#]+)\)", index)}
    assert set(PAGES) - {"docs/index.md"} <= linked


def test_the_readme_table_shows_the_figures_of_the_stored_results() -> None:
    """`turnout demo` plays the same runs as the leaderboard of the paper's world."""
    contenders = {
        "**FairPace**, tolerance 2 (default)": "FairPace, tolerance 2",
        "RBCS-F, speed weight 1": "RBCS-F, weight 1",
        "RBCS-F, speed weight 5": "RBCS-F, weight 5",
        "RBCS-F, speed weight 20": "RBCS-F, weight 20",
        "random selection": "random",
        "FedCS(3), which knows the expected times": "FedCS(3)",
    }
    with (ROOT / "docs/results/leaderboard/numerical/leaderboard.csv").open() as file:
        stored = {row["contender"]: row for row in csv.DictReader(file)}
    row_of_table = r"^\| (.+?) \| ([\d.]+) s \| (.+?) \| ([\d.]+) \| ([\d.]+) turns \| (.+?) \|$"
    shown = re.findall(row_of_table, (ROOT / "README.md").read_text(), flags=re.MULTILINE)
    assert [row[0] for row in shown] == list(contenders)
    random = float(stored["random"]["mean_round"])
    for label, mean_round, saved, least_share, shortfall, promise in shown:
        row = stored[contenders[label]]
        assert mean_round == f"{float(row['mean_round']):.2f}"
        assert saved == (
            "–" if label.startswith("random") else f"{1 - float(row['mean_round']) / random:.0%}"[:-1] + " %"
        )
        assert least_share == f"{float(row['least_share']):.3f}"
        assert shortfall == f"{float(row['worst_shortfall']):.2f}"
        assert promise == {"broken": "broken", "behind": "within the tolerance"}[row["status"]]


def check_block(block: Block, folder: Path, server_of: ServerOf) -> None:
    """Executes, reads or parses a block, in the folder of its page."""
    match block.language:
        case _ if block.other_test:
            assert block.page in (ROOT / block.other_test).read_text(), f"{block.other_test} does not run it"
        case "python" if block.reason:
            compile(block.text, block.page, "exec")
        case "python":
            # Forks have imported modules of turnout: a program that forgot to import one would not fail.
            assert not re.search(r"^\s*import .*\bturnout\b", block.text, re.MULTILINE), "use: from turnout import"
            done = server_of(block.text).run(block.text, cwd=folder)
            assert done.returncode == 0, done.stderr
        case "console" if block.exit_code is not None:
            for command in read_commands(block):
                run_command(command, folder, block.exit_code)
        case "console" | "indented":
            for command in read_commands(block):
                check_command(command.arguments)
                assert block.reason or not command.output.strip(), "output is shown, but the block is not run"
        case "toml":
            tomllib.loads(block.text)
            (folder / "study.toml").write_text(block.text)
        case "csv":
            path = folder / f"line-{block.line}.{block.language}"
            path.write_text(block.text)
            assert read_traces(path).parts
        case _:
            assert block.reason, f"a block in {block.language or 'no language'} needs a comment <!-- not run: … -->"


def run_command(command: Command, folder: Path, exit_code: int) -> None:
    """Executes a command and compares its output, where `…` stands for any text."""
    check_command(command.arguments)
    program, *arguments = command.arguments
    if program == "turnout":
        done = run(*arguments, COLUMNS="140")
        output, code, errors = done.stdout, done.returncode, done.stderr
    else:
        assert program == "python", f"cannot run {program}"
        process = subprocess.run([sys.executable, *arguments], capture_output=True, text=True, check=False, cwd=folder)
        output, code, errors = process.stdout, process.returncode, process.stderr
    assert code == exit_code, f"{command.line}: exit code {code}: {errors or output}"
    if command.target:
        (folder / command.target).write_text(output)
    expected = command.output.replace("…", "...")
    if expected.strip():
        assert doctest.OutputChecker().check_output(expected, output, SAME), f"{command.line} printed:\n{output}"


# The parser itself


def test_blocks_without_a_known_language_output_or_reason_are_refused(tmp_path: Path, server_of: ServerOf) -> None:
    refused = [
        Block("no-page.md", 1, "", "text\n", ""),
        Block("no-page.md", 1, "ruby", "puts 1\n", ""),
        Block("no-page.md", 1, "python", "1 +\n", "not run: it is wrong"),
        Block("no-page.md", 1, "python", "raise SystemExit(3)\n", ""),
        Block("no-page.md", 1, "python", "import turnout\n", ""),
        Block("no-page.md", 1, "console", "turnout demo\n", ""),
        Block("no-page.md", 1, "console", "$ turnout dance\n", ""),
        Block("no-page.md", 1, "console", "$ turnout demo --colour red\n", ""),
        Block("no-page.md", 1, "console", "$ turnout demo\nfive policies\n", ""),
        Block("no-page.md", 1, "console", "$ turnout --version\nturnout 3000\n", "run"),
        Block("no-page.md", 1, "console", "$ turnout --version\n", "run, exit code 1"),
        Block("no-page.md", 1, "console", "$ make coffee\n", ""),
        Block("no-page.md", 1, "console", "$ pip install 'turnout[tea]'\n", ""),
        Block("no-page.md", 1, "console", "$ turnout fleet certify\n", ""),
        Block("no-page.md", 1, "console", "$ turnout demo --seeds many\n", ""),
        Block("no-page.md", 1, "indented", "turnout dance\n", ""),
        Block("no-page.md", 1, "python", "pass\n", "run by tests/test_package.py"),
    ]
    for block in refused:
        with pytest.raises((AssertionError, click.ClickException, SyntaxError)):
            check_block(block, tmp_path, server_of)


def test_blocks_are_read_with_their_comments() -> None:
    kinds = Counter(block.language for page in PAGES for block in read_blocks(page))
    assert kinds["python"] >= 20
    assert kinds["console"] >= 10
    assert [(block.language, block.comment) for block in read_blocks("README.md")] == [
        ("console", ""),
        ("python", ""),
        ("console", "run"),
        ("python", "run by tests/adapters/flower/test_documents.py"),
    ]

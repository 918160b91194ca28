"""Fleets over HTTP: starts a service, a server and twenty devices on this machine, of which one is killed and one lies.
Everything is in a temporary folder, on the loopback address, and with tokens of its own. It ends in under a minute, and
prints what happened; with --keep it runs on until Ctrl-C, with the dashboard to look at. It needs the service and the
dashboard (pip install '.[service,dashboard]').

    python examples/service/demo.py [--keep]
"""

import argparse
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from rich.console import Console
from rich.table import Table

from turnout.client import FleetClient

HERE = Path(__file__).parent
PHONES = [f"phone-{number:02}" for number in range(1, 21)]
KILLED, LIAR = "phone-07", "phone-13"
KILLED_IN_TURN = 3
SETTINGS = "--concurrency 5 --guaranteed-rate 1/30 --tolerance 1 --deadline 5 --status-ttl 1 --model-size 1"
TURNOUT = [sys.executable, "-m", "turnout"]
console = Console(highlight=False, soft_wrap=True)


def main() -> None:
    """Runs the demonstration."""
    parser = argparse.ArgumentParser(description="A service, a server and twenty devices on this machine.")
    parser.add_argument("--turns", type=int, default=250, help="number of turns after which it ends")
    parser.add_argument("--most-seconds", type=float, default=600, help="give up after so many seconds")
    parser.add_argument("--folder", type=Path, help="existing folder for all files, which stay there")
    parser.add_argument("--keep", action="store_true", help="run on until Ctrl-C")
    options = parser.parse_args()
    with ExitStack() as opened:
        folder = options.folder or Path(opened.enter_context(tempfile.TemporaryDirectory(prefix="turnout-demo-")))
        fleet = folder / "phones.turnout"
        run(*TURNOUT, "fleet", "create", fleet, *SETTINGS.split())
        server, viewer = (
            run(*TURNOUT, "fleet", "tokens", "create", fleet, "--role", role) for role in ("server", "viewer")
        )
        (folder / "phones.txt").write_text("\n".join(PHONES))
        lines = run(
            *TURNOUT, "fleet", "tokens", "create", fleet, "--role", "device", "--clients", folder / "phones.txt"
        )
        tokens = dict(line.split() for line in lines.splitlines())

        address = opened.enter_context(serving(fleet))
        page = address.partition("/v1/")[0]
        console.print(f"The dashboard: {page}/?token={viewer}", markup=False)
        opened.enter_context(program("server", "server.py", [], address, server, folder))
        client = opened.enter_context(FleetClient(address, token=server, attempts=100))
        client.register(PHONES)
        devices = {}
        for number, phone in enumerate(PHONES):
            device = program(phone, "device.py", options_of(phone, number), address, tokens[phone], folder)
            devices[phone] = opened.enter_context(device)
        console.print(f"{len(PHONES)} devices are starting: {KILLED} will be killed, {LIAR} will lie.")
        wait(client, devices[KILLED], options.turns, options.most_seconds)
        print_table(client, (folder / f"{LIAR}.log").read_text().splitlines())
        if options.keep:
            console.print("Everything runs on. Press Ctrl-C to stop.")
            while True:
                time.sleep(1)


def run(*command: str | Path) -> str:
    """Runs a command and returns what it prints."""
    return subprocess.run(list(map(str, command)), check=True, stdout=subprocess.PIPE, text=True).stdout.strip()


@contextmanager
def serving(fleet: Path) -> Iterator[str]:
    """Runs the service on a free port of the loopback address; yields the address of the fleet."""
    command = [*TURNOUT, "fleet", "serve", str(fleet), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, bufsize=1) as service:
        try:
            assert service.stdout is not None
            address = re.search(r"http://\S+", service.stdout.readline())
            if address is None:
                sys.exit("the service did not start: see its error above")
            yield address[0]
        finally:
            service.terminate()  # it answers what it has accepted, and closes the fleet


@contextmanager
def program(
    name: str, script: str, options: list[str], address: str, token: str, folder: Path
) -> Iterator[subprocess.Popen[bytes]]:
    """Runs a script as a process of its own, which finds the service by its environment and writes to a log file."""
    env = {**os.environ, "TURNOUT_ADDRESS": address, "TURNOUT_TOKEN": token}
    command = [sys.executable, str(HERE / script), *options]
    with (folder / f"{name}.log").open("w") as log, subprocess.Popen(command, stdout=log, stderr=log, env=env) as child:
        try:
            yield child
        finally:
            child.kill()


def options_of(phone: str, number: int) -> list[str]:
    """Returns the options of a device: how fast it is, and whether it is killed or lies."""
    options = ["--cores", str(0.5 + number % 4), "--bandwidth", str(3 + number % 5)]
    if phone == KILLED:
        return [*options, "--killed-in-turn", str(KILLED_IN_TURN)]
    return [*options, "--lies"] if phone == LIAR else options


def wait(client: FleetClient, killed: subprocess.Popen[bytes], turns: int, most_seconds: float) -> None:
    """Waits for so many turns, until the killed device is late, and until the liar is suspected."""
    start, shown = time.monotonic(), 0
    while True:
        is_killed, status = killed.poll() is not None, client.status()
        if status["round"] >= shown + 50:
            shown = status["round"] // 50 * 50
            console.print(f"{time.monotonic() - start:3.0f} s: {shown} turns were given")
        outcomes = [turn["outcome"] for turn in client.history(KILLED)]
        is_late = is_killed and outcomes[-1:] == ["late"]
        if status["round"] >= turns and is_late and LIAR in status["suspects"]:
            return
        if time.monotonic() - start > most_seconds:
            sys.exit(f"after {most_seconds:.0f} s: {status['round']} turns, {KILLED} {outcomes}, {status['suspects']}")
        time.sleep(0.25)


def print_table(client: FleetClient, lies: list[str]) -> None:
    """Prints the turns of the fastest, the slowest, the killed and the lying device, and the promise."""
    status, entries = client.status(), client.certificate(limit=len(PHONES))["clients"]
    clients = {entry["client"]: entry for entry in entries}
    honest = sorted(
        (entry for entry in entries if entry["client"] not in (KILLED, LIAR)), key=lambda entry: entry["turns"]
    )
    arrived = [turn["outcome"] for turn in client.history(KILLED)].count("arrived")
    notes = {
        honest[-1]["client"]: "most turns of the honest devices",
        honest[0]["client"]: "fewest turns of the honest devices",
        KILLED: f"was killed while it trained: {arrived} turns arrived, the last is late",
        LIAR: f"said that each turn took 0.001 s: {'suspected' if LIAR in status['suspects'] else 'not suspected'}",
    }
    table = Table("device", "turns", "promised", "behind", "what happened", title=f"{status['round']} turns")
    for phone, note in notes.items():
        entry = clients[phone]
        table.add_row(phone, str(entry["turns"]), f"{entry['promised']:.1f}", f"{entry['behind']:+.1f}", note)
    console.print(table)
    console.print(f"The promise is {status['promise']['sentence']}.", markup=False)
    console.print(f"Suspects: {', '.join(status['suspects'])}.", markup=False)
    for line in lies[:3]:
        console.print(f"{LIAR} tried {line}", markup=False)


def exit_on_sigterm(*_: object) -> None:
    """Ends the demonstration and its processes."""
    sys.exit("ended by SIGTERM")


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, exit_on_sigterm)
    with suppress(KeyboardInterrupt):
        main()

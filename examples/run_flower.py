"""Run the Flower examples, each with a SuperLink of its own that ends when it is done; offline.

    python examples/run_flower.py simulation [--seeds 5] [--rounds 60] [--dataset fashion-mnist] [--out FOLDER]
    python examples/run_flower.py deployment [--out FOLDER]
    python examples/run_flower.py existing-app

The apps are ordinary ones; this runs one too: flwr run examples/flower_simulation --federation-config num-supernodes=40
"""

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from flower_network import Network, network

HERE = Path(__file__).resolve().parent
SLOWNESS = {"c0": 0.0, "c1": 1.0, "c2": 2.0, "c3": 4.0}  # seconds on top of what every client takes
LATE, ITS_SLOWNESS = "c4", 0.5
JOINS_IN, KILLED_IN = 1, 3  # fair rounds


def simulation(net: Network, given: argparse.Namespace) -> None:
    """Forty phones in Ray: Flower's random choice, then a fair one, for each seed."""
    if given.out and any(Path(given.out).glob("seed-*.turnout")):
        sys.exit(f"{given.out} holds the fleets of an earlier comparison: give another folder")
    net.start_superlink(simulation=True)
    words = {"seeds": given.seeds, "rounds": given.rounds, "dataset": given.dataset, "out": folder(given.out)}
    table = False
    for line in lines_of(net, HERE / "flower_simulation", words, nodes=40, end="Every run", log=given.log):
        table = (table or "promised share" in line) and "ClientAppActor" not in line
        if table and not given.log:
            print(line, end="", flush=True)
        elif "Starting " in line and " strategy" in line:
            print(line.split("Starting ")[1].split(" strategy")[0], flush=True)
        elif "[ROUND " in line and sys.stdout.isatty():
            print(f"  {line.split(':', 1)[1].strip()}", end="\r", flush=True)


def deployment(net: Network, given: argparse.Namespace) -> None:
    """SuperNodes as processes of their own, each as slow as it is told; one is killed, one joins late."""
    net.start_superlink()
    for number, (name, slowness) in enumerate(SLOWNESS.items()):
        net.start_supernode(name, data=number, slowness=slowness)
    out, killed, table = folder(given.out), "", False
    words = {"nodes": len(SLOWNESS), "out": out}
    for line in lines_of(net, HERE / "flower_deployment", words, end="lost:", log=given.log):
        table = table or line.startswith("clients ")
        if (table or "turnout: " in line) and not given.log:
            print(line, end="", flush=True)
        asked = re.search(r"turnout: round (\d+) asks (\S+)", line)
        if asked and int(asked[1]) == JOINS_IN:
            print(f"--- {LATE} joins", flush=True)
            net.start_supernode(LATE, data=len(SLOWNESS), slowness=ITS_SLOWNESS)
        elif asked and int(asked[1]) >= KILLED_IN and not killed:
            killed = asked[2]
            print(f"--- {killed} is killed, with the work in its hands", flush=True)
            net.kill(killed)
    print(f"What became of it: turnout fleet history {out}/fleet.turnout {killed}")


def existing_app(net: Network, given: argparse.Namespace) -> None:
    """An ordinary app on ten nodes, as it is and with fair.diff applied."""
    app = shutil.copytree(HERE / "flower_existing_app", net.folder / "app")
    net.start_superlink(simulation=True)
    for change in ("as it is", "with fair.diff"):
        if change == "with fair.diff":
            subprocess.run(["git", "init", "--quiet"], cwd=app, check=True)  # or git looks at a repository around it
            subprocess.run(["git", "apply", "fair.diff"], cwd=app, check=True)
        print(f"--- {change}", flush=True)
        for line in lines_of(net, app, {"num-server-rounds": 5}, nodes=10, end="accuracy", log=given.log):
            if ("turnout: " in line or line.startswith("accuracy")) and not given.log:
                print(line, end="", flush=True)


def lines_of(
    net: Network, app: Path, config: dict[str, object], *, nodes: int | None = None, end: str, log: bool
) -> Iterator[str]:
    """What `flwr run` says. Without a line that begins with `end`, it did not end well."""
    flower, said = net.run(app, config=config, nodes=nodes), []
    for line in flower.stdout:
        said.append(line)
        if log:
            print(line, end="", flush=True)
        yield line
    if flower.wait() or not any(line.startswith(end) for line in said):
        logs = "".join(f"\n{name}:\n{net.log_of(name)[-1500:]}" for name in net.processes)
        sys.exit("".join(said[-60:]) + logs + "\nthe run did not end well: its last words are above")


def folder(given: str) -> str:
    """A folder that is there."""
    out = Path(given or tempfile.mkdtemp(prefix="turnout-flower-results-")).resolve()
    out.mkdir(parents=True, exist_ok=True)
    return str(out)


if __name__ == "__main__":
    examples = {"simulation": simulation, "deployment": deployment, "existing-app": existing_app}
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("example", choices=examples)
    parser.add_argument("--seeds", type=int, default=1, help="of the simulation: trainings of each kind")
    parser.add_argument("--rounds", type=int, default=60, help="of the simulation")
    parser.add_argument("--dataset", choices=["digits", "fashion-mnist"], default="digits", help="of the simulation")
    parser.add_argument("--out", default="", help="a folder for the fleets' files and the runs as JSON")
    parser.add_argument("--log", action="store_true", help="show all of Flower's log")
    chosen = parser.parse_args()
    with network() as here:
        print("starting a Flower network on this machine …", flush=True)
        examples[chosen.example](here, chosen)

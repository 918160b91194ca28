"""Runs the three Flower apps of this folder offline, each with its own SuperLink, which is stopped afterwards: forty
simulated phones in rounds or without (flower_simulation), five processes of different speed of which one is killed
(flower_deployment), and an ordinary app before and after the change to fair selection (flower_existing_app). It needs
Flower with its simulation (pip install '.[flower-sim]') and takes one to three minutes.

    python examples/run_flower.py simulation [--seeds 5] [--rounds 60] [--dataset fashion-mnist] [--out FOLDER]
    python examples/run_flower.py async [--seeds 5] [--rounds 40] [--out FOLDER]
    python examples/run_flower.py deployment [--random-rounds 3] [--concurrency 2] [--deadline 15] [--out FOLDER]
    python examples/run_flower.py existing-app

The apps are ordinary Flower apps and can also be run without this script:

    flwr run examples/flower_simulation --federation-config num-supernodes=40
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
SLOWNESS = {"c0": 0.0, "c1": 1.0, "c2": 2.0, "c3": 4.0}  # additional seconds of training
JOINING, JOINING_SLOWNESS = "c4", 0.5
JOIN_ROUND, KILL_ROUND = 1, 3  # rounds of fair selection


def asynchronous(net: Network, arguments: argparse.Namespace) -> None:
    """The same phones without rounds: FedBuff with random selection, then with fair selection, for each seed."""
    simulation(net, arguments, concurrency=8)


def simulation(net: Network, arguments: argparse.Namespace, concurrency: int = 0) -> None:
    """Forty simulated phones: Flower's random selection, then fair selection, for each seed."""
    if arguments.out and any(Path(arguments.out).glob("seed-*.turnout")):
        sys.exit(f"{arguments.out} holds the fleets of an earlier comparison: pass another folder as --out")
    net.start_superlink(simulation=True)
    config = {
        "seeds": arguments.seeds,
        "rounds": arguments.rounds,
        "dataset": arguments.dataset,
        "concurrency": concurrency,
        "out": make_folder(arguments.out),
    }
    table = False
    for line in lines_of(net, HERE / "flower_simulation", config, nodes=40, end="Every run", log=arguments.log):
        table = (table or "promised share" in line) and "ClientAppActor" not in line
        if table and not arguments.log:
            print(line, end="", flush=True)
        elif "Starting " in line and " strategy" in line:
            print(line.split("Starting ")[1].split(" strategy")[0], flush=True)
        elif "[ROUND " in line and sys.stdout.isatty():
            print(f"  {line.split(':', 1)[1].strip()}", end="\r", flush=True)


def deployment(net: Network, arguments: argparse.Namespace) -> None:
    """SuperNodes of different speeds as separate processes; one is killed, one joins late."""
    net.start_superlink()
    for number, (name, slowness) in enumerate(SLOWNESS.items()):
        net.start_supernode(name, data=number, slowness=slowness)
    out, joined, killed, table = make_folder(arguments.out), False, "", False
    config: dict[str, object] = {"nodes": len(SLOWNESS), "rounds": arguments.random_rounds, "out": out}
    config["deadline"] = arguments.deadline or (60.0 if arguments.concurrency else 15.0)
    if arguments.concurrency:
        config["concurrency"] = arguments.concurrency
    for line in lines_of(net, HERE / "flower_deployment", config, end="lost:", log=arguments.log):
        table = table or line.startswith("clients ")
        if (table or "turnout: " in line) and not arguments.log:
            print(line, end="", flush=True)
        selected = re.search(r"turnout: (?:round|version) (\d+) (?:asks|is trained by) (\w+)", line)
        if selected and int(selected[1]) == JOIN_ROUND and not joined:
            joined = True
            print(f"--- {JOINING} joins", flush=True)
            net.start_supernode(JOINING, data=len(SLOWNESS), slowness=JOINING_SLOWNESS)
        elif selected and int(selected[1]) >= KILL_ROUND and not killed:
            killed = selected[2]
            print(f"--- {killed} is killed while it trains", flush=True)
            net.kill(killed)
    print(f"To see its history: turnout fleet history {out}/fleet.turnout {killed}")


def existing_app(net: Network, arguments: argparse.Namespace) -> None:
    """An ordinary app on ten nodes, first unchanged, then with fair.diff applied."""
    app = shutil.copytree(HERE / "flower_existing_app", net.folder / "app")
    net.start_superlink(simulation=True)
    for version in ("unchanged", "with fair.diff"):
        if version == "with fair.diff":
            # without a repository of its own, git apply would use a surrounding one
            subprocess.run(["git", "init", "--quiet"], cwd=app, check=True)
            subprocess.run(["git", "apply", "fair.diff"], cwd=app, check=True)
        print(f"--- {version}", flush=True)
        for line in lines_of(net, app, {"num-server-rounds": 5}, nodes=10, end="accuracy", log=arguments.log):
            if ("turnout: " in line or line.startswith("accuracy")) and not arguments.log:
                print(line, end="", flush=True)


def lines_of(
    net: Network, app: Path, config: dict[str, object], *, nodes: int | None = None, end: str, log: bool
) -> Iterator[str]:
    """Yields the output lines of `flwr run`; exits with an error if no line starts with `end`.

    Args:
        net: the network to run on.
        app: the folder of the app.
        config: values that override the app's configuration.
        nodes: the number of simulated nodes; None in a deployment.
        end: the start of the line that a successful run prints.
        log: whether to print all lines.
    """
    flower, output = net.run(app, config=config, nodes=nodes), []
    for line in flower.stdout:
        output.append(line)
        if log:
            print(line, end="", flush=True)
        yield line
    if flower.wait() or not any(line.startswith(end) for line in output):
        logs = "".join(f"\n{name}:\n{net.log_of(name)[-1500:]}" for name in net.processes)
        sys.exit("".join(output[-60:]) + logs + "\nthe run failed: see the end of its output above")


def make_folder(path: str) -> str:
    """Creates a folder, by default a temporary one, and returns its absolute path."""
    out = Path(path or tempfile.mkdtemp(prefix="turnout-flower-results-")).resolve()
    out.mkdir(parents=True, exist_ok=True)
    return str(out)


if __name__ == "__main__":
    examples = {"simulation": simulation, "async": asynchronous, "deployment": deployment, "existing-app": existing_app}
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("example", choices=examples)
    parser.add_argument("--seeds", type=int, default=1, help="simulation: number of runs with each selection")
    parser.add_argument("--rounds", type=int, default=60, help="simulation: number of rounds")
    parser.add_argument("--random-rounds", type=int, default=3, help="deployment: rounds with Flower's selection")
    parser.add_argument("--concurrency", type=int, default=0, help="deployment: slots instead of rounds, such as 2")
    parser.add_argument(
        "--deadline", type=float, default=0.0, help="deployment: seconds that a client has; 15, or 60 without rounds"
    )
    parser.add_argument("--dataset", choices=["digits", "fashion-mnist"], default="digits", help="simulation: dataset")
    parser.add_argument("--out", default="", help="folder for the fleet files and the results as JSON")
    parser.add_argument("--log", action="store_true", help="show all of Flower's log")
    arguments = parser.parse_args()
    with network() as net:
        print("starting a Flower network on this machine …", flush=True)
        examples[arguments.example](net, arguments)

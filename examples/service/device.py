"""A device: it checks in, trains whenever it is given a turn, and reports how long that took.

    TURNOUT_ADDRESS=http://127.0.0.1:8080/v1/fleets/fleet TURNOUT_TOKEN=… python examples/service/device.py --cores 2

It needs a service (demo.py starts one) and turnout without extras. The training is simulated by a pause.
`--killed-in-turn` and `--lies` are for the demonstration.
"""

import argparse
import os
import random
import signal
import time

from turnout import RunningTurn
from turnout.client import FleetClient, RefusedError

LIE = 0.001


def main() -> None:
    """Checks in until the process ends."""
    parser = argparse.ArgumentParser(description="A simulated device of a fleet that `turnout fleet serve` serves.")
    parser.add_argument("--cores", type=float, default=1.0, help="mean number of free CPU cores")
    parser.add_argument("--bandwidth", type=float, default=5.0, help="mean bandwidth, in models per second")
    parser.add_argument("--killed-in-turn", type=int, help="number of the turn in which the process is killed")
    parser.add_argument("--lies", action="store_true", help="report false times, twice, and for other devices")
    options = parser.parse_args()
    address, token = os.environ["TURNOUT_ADDRESS"], os.environ["TURNOUT_TOKEN"]
    turns: set[int] = set()
    with FleetClient(address, token=token, attempts=100) as client:
        while True:
            status = {
                "free_cpu": options.cores * random.uniform(0.7, 1.4),
                "bandwidth": options.bandwidth * random.uniform(0.7, 1.4),
            }
            answer = client.check_in(status=status, wait=30)
            if not isinstance(answer, RunningTurn):
                time.sleep(answer.seconds)
                continue
            turns.add(answer.id)
            seconds = (0.2 / status["free_cpu"] + 1 / status["bandwidth"]) * random.uniform(0.97, 1.03)
            time.sleep(seconds / 2)
            if len(turns) == options.killed_in_turn:
                os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(seconds / 2)
            if options.lies:
                lie(client, answer, turns)
            else:
                client.report(answer.id, seconds)


def lie(client: FleetClient, turn: RunningTurn, own: set[int]) -> None:
    """Reports a false time, the same turn a second time, and for other devices; prints what comes of it."""
    client.report(turn.id, LIE)
    is_new = client.report(turn.id, LIE)  # another call with another key, not the same call sent again
    print(f"a second report of turn {turn.id}: {'counted' if is_new else 'not counted'}", flush=True)
    for other in ("phone-01", turn.id - 1):
        if other == 0 or other in own:
            continue
        name = f"turn {other}" if isinstance(other, int) else other
        try:
            client.report(other, LIE)
        except RefusedError as error:
            print(f"a report for {name}: refused with status {error.status}: {error}", flush=True)
        else:
            print(f"a report for {name}: accepted", flush=True)


if __name__ == "__main__":
    main()

"""What other processes do with the files of fleets while a service has them open: they report, and they read."""

from __future__ import annotations

import json
import socket
import time
from pathlib import Path

from turnout.live import FleetReader, Reporter

#: A reporter is closed after so many reports, readers after so many reads: the last to close a file deletes its log.
REPORTS, READS = 3, 2
#: The pause after each read, and while the files are closed, in seconds.
PAUSE = 0.05


def report(fleet: str) -> None:
    """Prints a port, and records the outcomes that it gets there, one JSON object per line; answers whether it is new.

    It ends with the connection.
    """
    with socket.create_server(("127.0.0.1", 0)) as listener:
        print(listener.getsockname()[1])
        connection, _ = listener.accept()
    with connection, connection.makefile("rw", encoding="utf-8", newline="\n") as stream:
        line = stream.readline()
        while line:
            with Reporter(fleet) as reporter:
                for _ in range(REPORTS):
                    is_new = _record(reporter, **json.loads(line))
                    stream.write(json.dumps({"new": is_new}) + "\n")
                    stream.flush()
                    if not (line := stream.readline()):
                        break


def _record(reporter: Reporter, client: str, round: int, seconds: float | None = None, why: str = "") -> bool:
    if seconds is None:
        return reporter.report_failure(client, why, round=round)
    return reporter.report(client, seconds, round=round)


def read(*fleets: str) -> None:
    """Reads fleets until there is a file "stop" beside the first; prints the last round and the turns of each.

    What it has read is never taken back.
    """
    stop, seen, is_last = Path(fleets[0]).with_name("stop"), [(0, 0, 0)] * len(fleets), False
    while not is_last:
        readers = [FleetReader(fleet) for fleet in fleets]
        for _ in range(READS):
            is_last = stop.exists()
            for number, reader in enumerate(readers):
                with reader.reading():
                    turns = sum(reader.certificate().turns.tolist()) if reader.clients else 0
                    now = (reader.round, reader.last_event, turns)
                assert all(new >= old for new, old in zip(now, seen[number], strict=True)), (now, seen)
                seen[number] = now
            time.sleep(PAUSE)
        for reader in readers:
            reader.close()
        time.sleep(PAUSE)
    print(json.dumps([[last_round, turns] for last_round, _, turns in seen]))

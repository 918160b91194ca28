"""Clients whose imports take very long, in a Flower deployment: nobody waits for them but those who must.

The import of a client app waits for a file, its gate, which the test creates as soon as it has seen what it waits for.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from test_flower_secure import FAIR_CLIENT, FAIR_PROJECT, FAIR_SERVER, load_network
from waiting import wait_until

pytestmark = [pytest.mark.framework, pytest.mark.thorough]
GATE = """\
import os
import time
from pathlib import Path

gate = Path(os.environ["GATE"])
with gate.with_suffix(".imports").open("a") as imports:
    imports.write("a process has begun to import the app\\n")
while not gate.exists():
    time.sleep(0.05)

"""


class Deployment:
    """An app with fair selection, its SuperNodes, and the log of its server."""

    def __init__(self, net: Any, folder: Path) -> None:
        self.net, self._folder, self.lines = net, folder, list[str]()
        app = folder / "app" / "outside"
        app.mkdir(parents=True)
        server = FAIR_SERVER.replace("FLEET", repr(str(folder / "fleet.turnout")))  # it ends with the network
        server = re.sub(r"\bnodes=\d+", "nodes=2", re.sub(r"num_rounds=\d+", "num_rounds=10_000", server))
        for name, text in (("client_app", GATE + FAIR_CLIENT), ("server_app", server), ("__init__", "")):
            (app / f"{name}.py").write_text(text)
        (app.parent / "pyproject.toml").write_text(FAIR_PROJECT)

    def run(self) -> None:
        """Starts the app and collects its log until its end."""
        process = self.net.processes["run"] = self.net.run(self._folder / "app", config={})
        with process.stdout as lines:
            for line in lines:
                self.lines.append(line)

    def start_supernode(self, name: str, gate: str) -> None:
        """Starts a SuperNode whose client app cannot be imported before `open` is called for its gate."""
        self.net.environment["GATE"] = str(self._folder / gate)
        self.net.start_supernode(name, step=1)

    def imports(self, gate: str) -> int:
        """Returns the number of processes that have begun to import the app behind a gate."""
        path = (self._folder / gate).with_suffix(".imports")
        return len(path.read_text().splitlines()) if path.exists() else 0

    def queries(self, name: str) -> int:
        """Returns the number of queries that the SuperNode of a client has received."""
        return len(re.findall(r"Receiving: query\S* message", self.net.log_of(name)))

    def open(self, gate: str) -> None:
        """Lets imports behind this gate go on."""
        (self._folder / gate).touch()

    def wait_for(self, pattern: str, after: int = 0) -> int:
        """Waits for a line of the log; returns the number of lines up to it."""
        return wait_until(lambda: self._position(pattern, after), f"{pattern} in the log")

    def _position(self, pattern: str, after: int) -> int:
        lines = enumerate(self.lines[after:], after + 1)
        return next((number for number, line in lines if re.search(pattern, line)), 0)

    def wait_for_rounds(self, count: int) -> list[str]:
        """Waits until so many rounds have begun and ended from now on; returns the log of this time."""
        start = position = len(self.lines)
        for _ in range(count):
            position = self.wait_for(r"turnout: round \d+ took ", self.wait_for(r"turnout: round \d+ asks ", position))
        return self.lines[start:position]


@pytest.fixture
def deployment(tmp_path: Path) -> Iterator[Deployment]:
    with load_network().network() as net:
        net.start_superlink()
        deployment = Deployment(net, tmp_path)
        collector = threading.Thread(target=deployment.run)
        collector.start()
        yield deployment
    collector.join()
    print(*deployment.lines[-60:], sep="")  # shown if the test fails


def test_a_deployment_starts_grows_and_recovers_while_clients_import_for_a_long_time(deployment: Deployment) -> None:
    deployment.start_supernode("first", "start")
    deployment.start_supernode("second", "start")
    deployment.wait_for("turnout: 2 nodes have not given an id yet")  # longer than the server is patient
    wait_until(lambda: deployment.imports("start") == 2, "both apps are being imported")
    deployment.open("start")
    deployment.wait_for(r"turnout: round 1 asks (?=.*first \()(?=.*second \()")

    deployment.start_supernode("joining", "join")
    wait_until(lambda: deployment.imports("join"), "the app of the new client is being imported")
    log = "".join(deployment.wait_for_rounds(3))
    assert "joining (" not in log
    assert not re.search(r"took .*(failed|late) ", log), log
    deployment.open("join")
    deployment.wait_for(r"turnout: round \d+ asks .*joining \(")

    deployment.net.kill("second")
    deployment.start_supernode("second", "restart")
    wait_until(lambda: deployment.imports("restart"), "the app of the restarted client is being imported")
    log = "".join(deployment.wait_for_rounds(3))
    assert len(re.findall(r"asks .*first \(.*", log)) >= 2, log
    assert deployment.imports("restart") == 1  # its id: it got no other message before
    deployment.open("restart")
    wait_until(lambda: deployment.imports("restart") > 1, "the restarted client trains")
    assert [deployment.queries(name) for name in ("first", "joining", "second")] == [1, 1, 1]  # nobody is asked twice

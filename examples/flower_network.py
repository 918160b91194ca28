"""A Flower network on this machine, for the examples: a SuperLink, SuperNodes, and `flwr run`, all offline.

Everything is a process of ours and ends with us; nothing is written outside a scratch folder.
"""

import os
import signal
import socket
import subprocess
import sys
import sysconfig
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

SCRIPTS = Path(sysconfig.get_path("scripts"))


class Network:
    """One SuperLink on a free port of the loopback, and the SuperNodes that were started."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.port = folder, free_port()
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.environment = {
            **os.environ,
            "PATH": f"{SCRIPTS}{os.pathsep}{os.environ.get('PATH', '')}",  # Flower starts its own programs by name
            "FLWR_HOME": str(folder / "flower"),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
            "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.1",
            "RAY_USAGE_STATS_ENABLED": "0",
        }
        (folder / "flower").mkdir()
        config = (
            f'[superlink]\ndefault = "here"\n\n[superlink.here]\naddress = "127.0.0.1:{self.port}"\ninsecure = true\n'
        )
        (folder / "flower" / "config.toml").write_text(config)

    def start_superlink(self, *, simulation: bool = False) -> None:
        """And wait until it answers."""
        kind = ["--simulation"] if simulation else []
        address = ["--host", "127.0.0.1", "--port", str(self.port)]
        offline = "--disable-runtime-dependency-installation"
        self.start("superlink", "flower-superlink", "--insecure", offline, *address, *kind)
        for _ in range(600):
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/health", timeout=1):
                    return
            except OSError:
                if self.processes["superlink"].poll() is not None:
                    break
                time.sleep(0.1)
        sys.exit(f"the SuperLink did not start:\n{self.log_of('superlink')[-2000:]}")

    def start_supernode(self, name: str, **config: object) -> None:
        """A SuperNode of this name; `config` is what its client app finds in node_config."""
        words = {"client-id": name, **config}
        told = " ".join(f"{key}={repr(value) if isinstance(value, str) else value}" for key, value in words.items())
        link = ["--superlink", f"127.0.0.1:{self.port}", "--port", str(free_port())]
        self.start(name, "flower-supernode", "--insecure", *link, "--node-config", told)

    def kill(self, name: str) -> None:
        """Without warning, with all that it started."""
        os.killpg(self.processes[name].pid, signal.SIGKILL)
        self.processes.pop(name).wait()

    def run(self, app: Path, *, config: dict[str, object], nodes: int | None = None) -> "subprocess.Popen[str]":
        """`flwr run`, with its log on a pipe."""
        values = " ".join(f"{key}={repr(value) if isinstance(value, str) else value}" for key, value in config.items())
        federation = [] if nodes is None else ["--federation-config", f"num-supernodes={nodes}"]
        command = [str(SCRIPTS / "flwr"), "run", str(app), "here", "--stream", "--run-config", values, *federation]
        return subprocess.Popen(
            command,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def start(self, name: str, program: str, *words: str) -> None:
        """In a session of its own, so that it can be ended with its children."""
        with (self.folder / f"{name}.log").open("wb") as log:
            command = [str(SCRIPTS / program), *words]
            self.processes[name] = subprocess.Popen(
                command,
                cwd=self.folder,  # where an app writes what it names without a folder
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def log_of(self, name: str) -> str:
        """All that it has said."""
        return (self.folder / f"{name}.log").read_text(errors="replace")

    def close(self) -> None:
        """End everything, the SuperLink last."""
        for name in reversed(list(self.processes)):
            process = self.processes.pop(name)
            for how, patience in ((signal.SIGTERM, 5), (signal.SIGKILL, 5)):
                try:
                    os.killpg(process.pid, how)
                    process.wait(patience)
                except (ProcessLookupError, subprocess.TimeoutExpired):
                    continue


@contextmanager
def network() -> Iterator[Network]:
    """A network that is gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="turnout-flower-", ignore_cleanup_errors=True) as folder:
        net = Network(Path(folder))
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that we are closed then too
        try:
            yield net
        finally:
            net.close()


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])

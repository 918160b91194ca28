"""A part of run_flower.py: a Flower network on this machine, with a SuperLink, SuperNodes and `flwr run`, all offline.

It needs Flower (pip install '.[flower-sim]'). All processes end with this one, and nothing is written outside a
temporary folder.
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
# Reads process groups until this process has ended, however it ends, and then kills them.
GUARD = """
import contextlib, os, signal, sys
for group in list(map(int, sys.stdin)):
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)
"""


class Network:
    """A SuperLink on a free port of the loopback interface, and its SuperNodes."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.port = folder, free_port()
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.guard = subprocess.Popen(
            [sys.executable, "-c", GUARD], stdin=subprocess.PIPE, text=True, start_new_session=True
        )
        self.environment = {
            **os.environ,
            "PATH": f"{SCRIPTS}{os.pathsep}{os.environ.get('PATH', '')}",  # Flower starts its own programs by name
            "FLWR_HOME": str(folder / "flower"),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
            "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.1",
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_raylet_start_wait_time_s": "300",  # the machine may be busy
        }
        (folder / "flower").mkdir()
        config = (
            f'[superlink]\ndefault = "here"\n\n[superlink.here]\naddress = "127.0.0.1:{self.port}"\ninsecure = true\n'
        )
        (folder / "flower" / "config.toml").write_text(config)

    def start_superlink(self, *, simulation: bool = False) -> None:
        """Starts the SuperLink and waits until it answers."""
        mode = ["--simulation"] if simulation else []
        address = ["--host", "127.0.0.1", "--port", str(self.port)]
        offline = "--disable-runtime-dependency-installation"
        self.start("superlink", "flower-superlink", "--insecure", offline, *address, *mode)
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
        """Starts a SuperNode with this client id; `config` becomes the node_config of its client app."""
        node_config = format_config({"client-id": name, **config})
        link = ["--superlink", f"127.0.0.1:{self.port}", "--port", str(free_port())]
        self.start(name, "flower-supernode", "--insecure", *link, "--node-config", node_config)

    def kill(self, name: str) -> None:
        """Kills a SuperNode and its child processes with SIGKILL."""
        os.killpg(self.processes[name].pid, signal.SIGKILL)
        self.processes.pop(name).wait()

    def run(self, app: Path, *, config: dict[str, object], nodes: int | None = None) -> "subprocess.Popen[str]":
        """Starts `flwr run`; its output is a pipe."""
        federation = [] if nodes is None else ["--federation-config", f"num-supernodes={nodes}"]
        options = ["--stream", "--run-config", format_config(config), *federation]
        command = [str(SCRIPTS / "flwr"), "run", str(app), "here", *options]
        process = subprocess.Popen(
            command,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self.watch(process.pid)
        return process

    def start(self, name: str, program: str, *arguments: str) -> None:
        """Starts a program in a new session, so that it can be stopped together with its children."""
        with (self.folder / f"{name}.log").open("wb") as log:
            command = [str(SCRIPTS / program), *arguments]
            self.processes[name] = subprocess.Popen(
                command,
                cwd=self.folder,  # relative paths of an app are relative to this folder
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self.watch(self.processes[name].pid)

    def watch(self, group: int) -> None:
        """Lets a process and its children end when this process is killed."""
        print(group, file=self.guard.stdin, flush=True)

    def log_of(self, name: str) -> str:
        """Returns the log of a process."""
        return (self.folder / f"{name}.log").read_text(errors="replace")

    def close(self) -> None:
        """Stops all processes, the SuperLink last."""
        self.guard.kill()  # first: it must not kill groups of processes that have ended
        self.guard.communicate()
        for name in reversed(list(self.processes)):
            process = self.processes.pop(name)
            for signal_number, timeout in ((signal.SIGTERM, 5), (signal.SIGKILL, 5)):
                try:
                    os.killpg(process.pid, signal_number)
                    process.wait(timeout)
                except (ProcessLookupError, subprocess.TimeoutExpired):
                    continue


@contextmanager
def network() -> Iterator[Network]:
    """Yields a network and stops it afterwards."""
    with tempfile.TemporaryDirectory(prefix="turnout-flower-", ignore_cleanup_errors=True) as folder:
        net = Network(Path(folder))
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the network is closed too
        try:
            yield net
        finally:
            net.close()


def free_port() -> int:
    """Returns a free TCP port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def format_config(config: dict[str, object]) -> str:
    """Formats a configuration as Flower's command line expects it: key=value pairs, strings quoted."""
    return " ".join(f"{key}={repr(value) if isinstance(value, str) else value}" for key, value in config.items())

"""An ordinary Flower app becomes fair with a few lines, in a deployment with TLS and authenticated SuperNodes."""

from __future__ import annotations

import difflib
import importlib.util
import ssl
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from turnout.live import FleetReader

pytest.importorskip("flwr", "1.41", reason="SuperNodes are registered by name from Flower 1.41 on")
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

pytestmark = pytest.mark.framework
ROOT = Path(__file__).parent.parent
CLIENTS, ROUNDS, COHORT, MAX_LINES = 12, 4, 3, 8

PROJECT = """\
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "outside"
version = "1.0.0"
license = "Apache-2.0"
dependencies = ["flwr>=1.41", "numpy"]

[tool.hatch.build.targets.wheel]
packages = ["."]

[tool.flwr.app]
publisher = "outside"

[tool.flwr.app.components]
serverapp = "outside.server_app:app"
clientapp = "outside.client_app:app"

[tool.flwr.app.config]
"""
CLIENT = """\
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

app = ClientApp()


@app.train()
def train(message, context):
    step = float(context.node_config["step"])
    arrays = message.content.array_records["arrays"]
    trained = ArrayRecord({name: Array(array.numpy() + step) for name, array in arrays.items()})
    metrics = MetricRecord({"num-examples": 10, "train_loss": 1.0})
    return Message(RecordDict({"arrays": trained, "metrics": metrics}), reply_to=message)
"""
SERVER = """\
import numpy as np
from flwr.app import ArrayRecord
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg

app = ServerApp()


@app.main()
def main(grid, context):
    arrays = ArrayRecord([np.zeros(10)])
    strategy = FedAvg(fraction_train=0.25, fraction_evaluate=0.0)
    result = strategy.start(grid=grid, initial_arrays=arrays, num_rounds=ROUNDS)
    print("trained:", float(result.arrays["0"].numpy().mean()))
""".replace("ROUNDS", str(ROUNDS))
FAIR_CLIENT = (
    CLIENT.replace(
        "from flwr.clientapp import ClientApp\n",
        "from flwr.clientapp import ClientApp\nfrom turnout.adapters.flower.client import with_status\n",
    ).replace("\n\n@app.train", "\n\n@app.train")
    + "app = with_status(app)\n"
)
FAIR_SERVER = (
    SERVER.replace(
        "import FedAvg\n",
        "import FedAvg\nfrom turnout import Scheduler\nfrom turnout.adapters.flower import FairSelection\n",
    )
    .replace("fraction_train=0.25,", "fraction_train=1.0, min_train_nodes=1, min_available_nodes=1,")
    .replace(
        "    result = strategy.start(",
        f"    scheduler = Scheduler.open(FLEET, settings={{'cohort_size': {COHORT}, 'guaranteed_rate': 0.1}}, "
        "deadline=600.0)\n"
        f"    result = FairSelection(strategy, scheduler, nodes={CLIENTS}).start(",
    )
)
FAIR_PROJECT = PROJECT.replace('"numpy"]', '"numpy", "turnout[flower]"]')


def changed_lines(before: str, after: str) -> int:
    """Returns the number of lines that were added or replaced."""
    return sum(line.startswith("+ ") for line in difflib.ndiff(before.splitlines(), after.splitlines()))


def load_network() -> ModuleType:
    spec = importlib.util.spec_from_file_location("flower_network", ROOT / "examples" / "flower_network.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def run_openssl(*arguments: str) -> None:
    subprocess.run(["openssl", *arguments], check=True, capture_output=True)


class SecureNetwork:
    """A SuperLink with TLS that admits only registered SuperNodes."""

    def __init__(self, net: Any, scripts: Path) -> None:
        self.net, self._scripts, self._folder = net, scripts, Path(net.folder)
        self._make_certificates()
        config = f'[superlink]\ndefault = "here"\n\n[superlink.here]\naddress = "127.0.0.1:{net.port}"\n'
        (self._folder / "flower" / "config.toml").write_text(f'{config}root-certificates = "{self._folder}/ca.crt"\n')

    def _make_certificates(self) -> None:
        key, folder = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-384", "-nodes"), self._folder
        authority = ["-x509", "-subj", "/CN=test authority", "-days", "2"]
        run_openssl("req", *key, *authority, "-keyout", f"{folder}/ca.key", "-out", f"{folder}/ca.crt")
        server = ["-subj", "/CN=127.0.0.1", "-keyout", f"{folder}/server.key", "-out", f"{folder}/server.csr"]
        run_openssl("req", *key, *server)
        (folder / "names").write_text("subjectAltName=DNS:localhost,IP:127.0.0.1\n")
        signing = ["-CA", f"{folder}/ca.crt", "-CAkey", f"{folder}/ca.key", "-CAcreateserial", "-days", "2"]
        files = ["-in", f"{folder}/server.csr", "-out", f"{folder}/server.crt", "-extfile", f"{folder}/names"]
        run_openssl("x509", "-req", *signing, *files)

    def start_superlink(self) -> None:
        folder = self._folder
        certificates = [
            f"--ssl-{name}={folder}/{file}"
            for name, file in (("certfile", "server.crt"), ("keyfile", "server.key"), ("ca-certfile", "ca.crt"))
        ]
        address = ["--host", "127.0.0.1", "--port", str(self.net.port)]
        offline = "--disable-runtime-dependency-installation"
        self.net.start("superlink", "flower-superlink", "--enable-supernode-auth", offline, *certificates, *address)
        trusted = ssl.create_default_context(cafile=f"{folder}/ca.crt")
        end = time.monotonic() + 120
        while True:
            try:
                url = f"https://127.0.0.1:{self.net.port}/health"
                with urllib.request.urlopen(url, timeout=5, context=trusted):
                    return
            except OSError:
                assert self.net.processes["superlink"].poll() is None, self.net.log_of("superlink")[-3000:]
                assert time.monotonic() < end, self.net.log_of("superlink")[-3000:]
                time.sleep(0.2)

    def register(self, name: str) -> None:
        """Registers the key of a SuperNode under a name."""
        key, private = self._folder / name, ec.generate_private_key(ec.SECP384R1())
        formats = (serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, serialization.NoEncryption())
        public = (serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
        Path(f"{key}.key").write_bytes(private.private_bytes(*formats))
        Path(f"{key}.pub").write_bytes(private.public_key().public_bytes(*public))
        command = [str(self._scripts / "flwr"), "supernode", "register", f"{key}.pub", "here", "--name", name]
        done = subprocess.run(command, env=self.net.environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr

    def start_supernode(self, name: str, port: int, step: int) -> None:
        folder = self._folder
        link = ["--superlink", f"127.0.0.1:{self.net.port}", "--root-certificates", f"{folder}/ca.crt"]
        own = ["--auth-supernode-private-key", f"{folder}/{name}.key", "--port", str(port)]
        config = ["--node-config", f"step={step}"]
        self.net.start(name, "flower-supernode", *link, *own, *config)


@pytest.fixture
def network() -> Iterator[tuple[SecureNetwork, Any]]:
    module = load_network()
    with module.network() as net:
        yield SecureNetwork(net, module.SCRIPTS), module


def test_an_outside_app_needs_at_most_eight_lines() -> None:
    pairs = ((PROJECT, FAIR_PROJECT), (CLIENT, FAIR_CLIENT), (SERVER, FAIR_SERVER))
    assert sum(changed_lines(before, after) for before, after in pairs) <= MAX_LINES


def test_an_outside_app_is_fair_with_tls_and_authenticated_supernodes(
    network: tuple[SecureNetwork, Any], tmp_path: Path
) -> None:
    secure, module = network
    fleet = tmp_path / "fleet.turnout"
    package = tmp_path / "app" / "outside"
    package.mkdir(parents=True)
    (package.parent / "pyproject.toml").write_text(FAIR_PROJECT)
    (package / "__init__.py").write_text("")
    (package / "client_app.py").write_text(FAIR_CLIENT)
    (package / "server_app.py").write_text(FAIR_SERVER.replace("FLEET", repr(str(fleet))))
    secure.start_superlink()
    names = [f"hospital-{number:02d}" for number in range(CLIENTS)]
    for number, name in enumerate(names):
        secure.register(name)
        secure.start_supernode(name, module.free_port(), number)
    process = secure.net.run(package.parent, config={})
    output, _ = process.communicate(timeout=1500)
    assert "trained: " in output, output[-4000:] + secure.net.log_of("superlink")[-3000:]
    with FleetReader(fleet) as scheduler:
        assert scheduler.clients == names  # the registered names, which no node can forge
        assert scheduler.round == ROUNDS
        turns = [turn for number in range(1, ROUNDS + 1) for turn in scheduler.history(round=number)]
        assert {turn.kind for turn in turns} == {"arrived"}, turns
        assert len(turns) == ROUNDS * COHORT
        assert len({turn.id for turn in turns}) == CLIENTS  # everybody had one turn
        assert scheduler.certificate().status == "kept"
    assert "did not identify themselves" not in output
    assert "ttl" not in output.lower()

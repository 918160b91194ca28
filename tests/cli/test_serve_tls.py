"""`turnout fleet serve --certificate --key`, with a certificate that the test makes."""

from __future__ import annotations

import ipaddress
import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from cli.in_process import error_of, run
from cli.test_serve import SLOTS, serving
from turnout.client import FleetClient, UnavailableError
from turnout.live import RunningTurn
from turnout.service.access import FleetTokens


def make_certificate(folder: Path, name: str, password: bytes | None = None) -> tuple[Path, Path]:
    """Writes a certificate of 127.0.0.1 that it signs itself, and its private key; returns their paths."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "turnout test")])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
        .sign(key, hashes.SHA256())
    )
    encryption = serialization.NoEncryption() if password is None else serialization.BestAvailableEncryption(password)
    paths = folder / f"{name}.pem", folder / f"{name}.key"
    paths[0].write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    paths[1].write_bytes(key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encryption))
    return paths


@pytest.fixture
def fleet(tmp_path: Path) -> Path:
    path = tmp_path / "fleet.turnout"
    run("fleet", "create", path, *SLOTS)
    return path


def test_a_client_that_trusts_the_certificate_calls_over_tls_and_others_do_not(fleet: Path, tmp_path: Path) -> None:
    certificate, key = make_certificate(tmp_path, "service")
    other, _ = make_certificate(tmp_path, "other")
    with FleetTokens(fleet) as file:
        (device,) = file.create("device", clients=["phone-1"])
    with serving(fleet, "--certificate", certificate, "--key", key) as (_, port, lines):
        address = f"https://127.0.0.1:{port}/v1/fleets/fleet"
        assert lines[0] == f"{fleet} at {address}\n"
        with FleetClient(address, token=device.text, authorities=certificate) as client:
            turn = client.check_in()
            assert isinstance(turn, RunningTurn)
            assert client.report(turn.id, 12.5)
        for authorities in (other, None):
            with (
                FleetClient(address, token=device.text, authorities=authorities) as client,
                pytest.raises(UnavailableError, match=f"is refused: {ssl.SSLCertVerificationError.__name__}"),
            ):
                client.check_in()
        plain = FleetClient(address.replace("https", "http"), token=device.text, attempts=1)
        with plain, pytest.raises(UnavailableError):
            plain.check_in()


def test_files_that_cannot_be_used_for_tls_are_refused_before_anything_is_opened(fleet: Path, tmp_path: Path) -> None:
    certificate, key = make_certificate(tmp_path, "service")
    other, encrypted = make_certificate(tmp_path, "other", b"secret")
    advice = "pass a certificate and its own private key as PEM files, the key without a password"
    for files in ((certificate, encrypted), (other, encrypted), (other, key), (key, certificate)):
        refused = error_of("fleet", "serve", fleet, "--no-tokens", "--certificate", files[0], "--key", files[1])
        assert f"cannot use {files[0]} and {files[1]} for TLS" in refused
        assert advice in refused
    assert "cannot use" in error_of(
        "fleet", "serve", fleet, "--no-tokens", "--certificate", certificate
    )  # without its key

"""Self-signed certificates for tests of TLS."""

from __future__ import annotations

import subprocess
from pathlib import Path


def create_certificates(directory: Path, *names: str) -> None:
    """Create ``NAME.pem`` and ``NAME.key`` (PKCS #8) for each name: a certificate of localhost with its key."""
    for name in names:
        subprocess.run(
            ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", f"/CN={name}",
             "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1",
             "-keyout", directory / f"{name}.key", "-out", directory / f"{name}.pem"],
            check=True,
            capture_output=True,
        )  # fmt: skip

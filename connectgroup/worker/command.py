"""The options of ``connectgroup worker`` for a worker that a supervisor starts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ..config.coordinator import CoordinatorConfig


def worker_options(
    assignors: Sequence[str], server_assignor: str | None, rebalance_timeout_ms: int | None
) -> list[str]:
    """Options that all workers of a supervisor share."""
    options = [word for name in assignors for word in ("--assignor", name)]
    if not assignors:
        options += ["--server-assignor", server_assignor] if server_assignor is not None else ["--no-assignor"]
    if rebalance_timeout_ms is not None:
        options += ["--rebalance-timeout-ms", str(rebalance_timeout_ms)]
    return options


def access_options(config: CoordinatorConfig, credentials: Path | None) -> list[str]:
    """Options with which a worker connects to a coordinator: paths of files, not their contents."""
    files = {"--credentials": credentials}
    if config.tls_cert is not None:
        # Its issuer and its names do not matter: the workers connect to this coordinator and no other.
        files["--tls-server"] = config.tls_cert
    if config.tls_ca is not None:
        files |= {"--tls-cert": config.tls_cert, "--tls-key": config.tls_key}
    return [word for option, path in files.items() if path is not None for word in (option, str(path))]

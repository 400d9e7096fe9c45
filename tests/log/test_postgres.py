"""The log in PostgreSQL, which several coordinators share: the contract of every log, leases, and failures of servers."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest

from connectgroup.log.base import MAX_BATCH_BYTES, Log
from connectgroup.log.leased import LeasedLog
from connectgroup.testing.contracts.log import LogContract


def log_at(url: str, **named: object) -> LeasedLog:
    from connectgroup.log.postgres.store import PostgresStore

    return LeasedLog(PostgresStore(url, schema=str(named.pop("schema", "connectgroup"))), **named)  # type: ignore[arg-type]


class TestPostgresLog(LogContract):
    """Each test has a schema of its own."""

    @pytest.fixture(autouse=True)
    def _server(self, postgres: str) -> None:
        self.url = postgres
        self.schema = f"s{uuid.uuid4().hex}"

    def make_log(self, place: Path, *, max_batch_bytes: int = MAX_BATCH_BYTES) -> Log:
        return log_at(self.url, schema=self.schema, max_batch_bytes=max_batch_bytes)

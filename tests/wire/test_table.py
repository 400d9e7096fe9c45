"""The table of APIs: each API once, served and sent by a party."""

from __future__ import annotations

from connectgroup.wire.apis import APIS
from connectgroup.wire.kafka_apis import BROKER_APIS
from connectgroup.wire.table import TABLE, Party, sent_by, served_by


def test_each_api_has_one_key_one_name_and_one_request_class() -> None:
    for field in ("key", "name", "request_class", "response_class"):
        values = [getattr(entry, field) for entry in TABLE]
        assert len(set(values)) == len(values), field
    assert [entry.key for entry in TABLE] == sorted(entry.key for entry in TABLE)


def test_each_api_is_served_and_sent() -> None:
    assert all(entry.servers and entry.clients for entry in TABLE)


def test_apis_of_each_party_match_the_table() -> None:
    assert APIS.keys() == {entry.key for entry in served_by(Party.COORDINATOR)}
    assert {api.key for api in BROKER_APIS.values()} == {entry.key for entry in sent_by(Party.CONSUMER)}

"""``connectgroup groups list`` and ``describe`` with the groups of a Kafka broker."""

from __future__ import annotations

import json
import re
import socket
from pathlib import Path

from tests.integration.processes import call_command

from .broker import PASSWORD, Broker
from .conftest import NewGroup


def test_groups_of_a_broker_are_listed_and_described(new_group: NewGroup, tmp_path: Path) -> None:
    """Members of both protocols, each in its own group."""
    with new_group("command classic", partitions=4) as classic, new_group("command new", partitions=2) as new:
        at = ("--bootstrap-server", classic.broker.bootstrap)
        members = [classic.librdkafka(name, "range") for name in ("first", "second")]
        classic.wait_until_balanced(*members)
        new.wait_until_balanced(new.librdkafka("third"))
        new.write(10)
        new.wait_until_read()

        listed = call_command("groups", "list", *at).out
        assert re.search(rf"{classic.name} +classic +Stable +- +2", listed), listed
        assert re.search(rf"{new.name} +consumer +Stable +- +1", listed), listed
        assert classic.name not in call_command("groups", "list", *at, "--type", "consumer").out
        assert new.name not in call_command("groups", "list", *at, "--state", "empty").out

        described = call_command("groups", "describe", classic.name, *at).out
        assert f"group {classic.name} of type classic: Stable\nassignor: range\n" in described
        assert len(re.findall(r"member (?:first|second)-\S+ \(127\.0\.0\.1\)\n", described)) == 2, described
        shown = json.loads(call_command("groups", "describe", new.name, *at, "--json").out)
        [member] = shown["workers"]
        assert member["client_id"] == "third"
        assert member["assigned"] == [f"{new.name}-0", f"{new.name}-1"]

        for member_ in new.members:
            member_.stop()
        offsets = call_command("groups", "describe", new.name, *at, "--offsets").out
        assert len(re.findall(rf"{new.name} +\d +5", offsets)) == 2, offsets

        missing = call_command("groups", "describe", "nosuch", *at)
        assert missing.code == 3
        assert "no such group 'nosuch'; groups here: " in missing.err
        assert classic.name in missing.err
        settings = tmp_path / "client.properties"
        settings.write_text("security.protocol=carrier.pigeon\n")
        wrong = call_command("groups", "list", *at, "--command-config", settings)
        assert "--command-config: got" in wrong.err
        assert "Traceback" not in wrong.err


def test_a_group_that_may_not_be_described_does_not_hide_the_others(
    new_group: NewGroup, broker: Broker, tmp_path: Path
) -> None:
    from confluent_kafka.admin import (  # type: ignore[attr-defined]
        AclBinding,
        AclOperation,
        AclPermissionType,
        AdminClient,
        ResourcePatternType,
        ResourceType,
    )

    with new_group("open", partitions=1) as open_, new_group("secret", partitions=1) as secret:
        for group in (open_, secret):
            group.wait_until_balanced(group.librdkafka("member"))
        rule = AclBinding(
            ResourceType.GROUP,
            secret.name,
            ResourcePatternType.LITERAL,
            "User:alice",
            "*",
            AclOperation.DESCRIBE,
            AclPermissionType.DENY,
        )
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        admin.create_acls([rule])[rule].result(30)
        settings = tmp_path / "alice.properties"
        settings.write_text(
            "security.protocol=SASL_SSL\nsasl.mechanism=SCRAM-SHA-512\nsasl.username=alice\n"
            f"sasl.password={PASSWORD}\nssl.ca.location={broker.certificates / 'server.pem'}\n"
        )
        at = ("--bootstrap-server", broker.sasl, "--command-config", settings)
        listed = call_command("groups", "list", *at)
        assert re.search(rf"{open_.name} +consumer +Stable", listed.out), listed.err
        assert re.search(rf"{secret.name} +NOT SERVED", listed.out)
        refused = call_command("groups", "describe", secret.name, *at)
        assert (refused.code, refused.out) == (5, "")
        for error in (listed.err, refused.err):
            assert "--bootstrap-server" not in error, "the address is right"
            assert error.count("\n") == 1


def test_broker_that_does_not_answer_is_one_line() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
        ended = call_command("groups", "list", "--bootstrap-server", address)
    assert ended.code == 5
    assert re.fullmatch(rf"connectgroup: {address}: .*; allowed: --bootstrap-server with .*\n", ended.err), ended.err
    alone = call_command("groups", "list", "--command-config", "x")
    assert "--command-config: got 'x'; allowed: a file together with --bootstrap-server" in alone.err

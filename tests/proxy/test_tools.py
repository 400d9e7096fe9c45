"""Kafka's own command-line tools, unmodified, on the coordinator behind the proxy."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from tests.volume import ci_only

from .conftest import NewGroup

if TYPE_CHECKING:
    from .running import Proxy


def test_console_consumer_reads_every_record(new_group: NewGroup, proxy: Proxy) -> None:
    with new_group("console", partitions=3) as group:
        group.write(30)
        limits = ("--from-beginning", "--max-messages", "30", "--timeout-ms", "60000")
        at = ("--bootstrap-server", proxy.bootstrap, "--topic", group.name, "--group", group.name)
        read = proxy.broker.tool("consumer.ConsoleConsumer", *at, *limits)
        numbers = sorted(int(line) for line in read.splitlines() if line.isdigit())
        assert numbers == list(range(30)), read


@ci_only("five starts of Java; in a user's run, groups and the console consumer are served to other clients")
def test_kafka_tools_list_describe_and_delete_a_classic_group(new_group: NewGroup, proxy: Proxy) -> None:
    at = ("--bootstrap-server", proxy.bootstrap)

    def consumer_groups(*arguments: str) -> str:
        return proxy.broker.tool("consumer.group.ConsumerGroupCommand", *at, *arguments)

    with new_group("tools", partitions=4) as group:
        group.write(40)
        members = [group.librdkafka(name, "range") for name in ("first", "second")]
        group.wait_until_balanced(*members)
        group.wait_until_read()

        listed = proxy.broker.tool("GroupsCommand", *at, "--list")
        assert re.search(rf"{group.name} +Classic +consumer", listed), listed
        listed = consumer_groups("--list", "--state", "stable")
        assert re.search(rf"{group.name} +Stable", listed), listed
        assert group.name not in consumer_groups("--list", "--state", "empty")

        described = consumer_groups("--describe", "--group", group.name, "--members", "--verbose")
        assert len(re.findall(r"(?:first|second)-\S+ +\S+ +(?:first|second) +2 ", described)) == 2, described
        described = consumer_groups("--describe", "--group", group.name, "--state")
        assert re.search(rf"{group.name} .* range +Stable +2", described), described
        assert "is not empty" in consumer_groups("--delete", "--group", group.name)

        for member in members:
            member.stop()
        described = consumer_groups("--describe", "--group", group.name)
        assert len(re.findall(rf"{group.name} +{group.name} +\d +10 +10 +0 ", described)) == 4, described

        to_start = ("--reset-offsets", "--to-earliest", "--topic", group.name, "--execute")
        done = consumer_groups("--group", group.name, *to_start)
        assert len(re.findall(rf"{group.name} +{group.name} +\d +0", done)) == 4, done
        described = consumer_groups("--describe", "--group", group.name)
        assert len(re.findall(rf"{group.name} +{group.name} +\d +0 +10 +10 ", described)) == 4, described
        done = consumer_groups("--delete", "--group", group.name)
        assert "was successful" in done, done
        assert group.name not in consumer_groups("--list")

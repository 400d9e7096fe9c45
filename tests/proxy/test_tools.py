"""Kafka's own command-line tools, unmodified, on the coordinator behind the proxy."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from .conftest import NewGroup

if TYPE_CHECKING:
    from .running import Proxy


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
        done = consumer_groups("--delete", "--group", group.name)
        assert "was successful" in done, done
        assert group.name not in consumer_groups("--list")

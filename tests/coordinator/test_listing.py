"""ListGroups, DescribeGroups and DeleteGroups over groups of all types."""

from __future__ import annotations

import pytest

from connectgroup.coordinator.runtime import Coordinator
from connectgroup.group.connect.classic_members import metadata
from connectgroup.protocol.messages.describe import (
    DeleteGroupsRequest,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    ListGroupsRequest,
)

from .builders import add, beat
from .test_classic import join, send, serving, stable

pytestmark = pytest.mark.asyncio


async def groups(coordinator: Coordinator) -> None:
    """A classic group ``g``, and a connect group ``w`` with one worker."""
    await stable(coordinator)
    assert (await send(coordinator, add(group_id="w"))).error_code == 0
    await send(coordinator, beat("a", group_id="w"))


async def listed(coordinator: Coordinator, **filters: tuple[str, ...]) -> list[str]:
    response = await send(coordinator, ListGroupsRequest(**filters))
    return [group.group_id for group in response.groups]


async def test_groups_of_all_types_are_listed() -> None:
    async with serving() as coordinator:
        await groups(coordinator)
        response = await send(coordinator, ListGroupsRequest())
        assert [(group.group_id, group.group_type, group.protocol_type) for group in response.groups] == [
            ("g", "classic", "consumer"),
            ("w", "connect", "connect"),
        ]


async def test_listing_is_filtered_by_type_and_state_in_any_case() -> None:
    """KIP-518, KIP-848."""
    async with serving() as coordinator:
        await groups(coordinator)
        await send(coordinator, add(group_id="empty"))
        assert await listed(coordinator, types_filter=("Classic",)) == ["g"]
        assert await listed(coordinator, states_filter=("EMPTY",)) == ["empty"]
        assert await listed(coordinator, states_filter=("empty", "stable"), types_filter=("connect",)) == ["empty"]
        assert await listed(coordinator, types_filter=("share",)) == []


async def describe(coordinator: Coordinator, *names: str, expects_not_found: bool = True) -> DescribeGroupsResponse:
    request = DescribeGroupsRequest(groups=names, expects_not_found=expects_not_found)
    response = await send(coordinator, request)
    assert isinstance(response, DescribeGroupsResponse)
    return response


async def test_classic_group_is_described_with_metadata_and_assignments() -> None:
    async with serving() as coordinator:
        first, second = await stable(coordinator)
        (group,) = (await describe(coordinator, "g")).groups
        assert (group.group_state, group.protocol_type, group.protocol_data) == ("Stable", "consumer", "range")
        assert [
            (each.member_id, each.client_id, each.client_host, each.member_metadata, each.member_assignment)
            for each in group.members
        ] == [(each.member_id, "c", "h", b"m", each.member_id.encode()) for each in (first, second)]


async def test_connect_group_is_described_with_the_structures_of_kafka_connect() -> None:
    async with serving() as coordinator:
        await groups(coordinator)
        (group,) = (await describe(coordinator, "w")).groups
        assert (group.protocol_type, group.group_state) == ("connect", "PreparingRebalance")
        (member,) = group.members
        assert member.member_metadata == metadata("h")


async def test_group_that_does_not_exist_is_dead_or_an_error() -> None:
    """KIP-1043: an error from version 6 on."""
    async with serving() as coordinator:
        (group,) = (await describe(coordinator, "x")).groups
        assert (group.error_code, group.group_state) == (69, "Dead")
        (group,) = (await describe(coordinator, "x", expects_not_found=False)).groups
        assert (group.error_code, group.group_state) == (0, "Dead")


async def test_groups_without_members_are_deleted() -> None:
    async with serving() as coordinator:
        await groups(coordinator)
        await send(coordinator, add(group_id="empty"))
        request = DeleteGroupsRequest(groups_names=("g", "empty", "x"))
        results = (await send(coordinator, request)).results
        assert [(result.group_id, result.error_code) for result in results] == [("g", 68), ("empty", 0), ("x", 69)]
        assert await listed(coordinator) == ["g", "w"]
        assert (await send(coordinator, join(group="empty"))).error_code == 0

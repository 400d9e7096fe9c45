"""The contract of every transport, as tests: inherit ``TransportContract``, define ``serving``, and run pytest.

class TestMyTransport(TransportContract):
    @asynccontextmanager
    async def serving(self, handler: Handler) -> AsyncIterator[Callable[[], Client]]:
        async with my_server(handler) as server:
            yield lambda: MyClient(server.port)
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import ClassVar

import pytest

from ...errors import FencedMemberEpoch, TransportError, UnknownServerError
from ...protocol.messages.api import Request, Response
from ...protocol.messages.assignment import InstallRequest, InstallResponse, PrepareRequest, PrepareResponse
from ...protocol.messages.common import ConnectorTasks
from ...protocol.messages.connectors import UpdateConnectorsRequest, UpdateConnectorsResponse
from ...protocol.messages.describe import (
    DeleteRequest,
    DeleteResponse,
    DescribedGroup,
    DescribeRequest,
    DescribeResponse,
)
from ...protocol.messages.heartbeat import HeartbeatAssignment, HeartbeatRequest, HeartbeatResponse
from ...transport.base import Client

LONG_S = 60.0
"""For waits that end by themselves; a test that reaches this timeout has failed."""


def beat(name: str, *, owned: tuple[ConnectorTasks, ...] | None = None) -> HeartbeatRequest:
    """A heartbeat that ``ScriptedHandler`` identifies by ``name``."""
    return HeartbeatRequest(group_id="g", member_id=name, member_epoch=1, owned=owned)


class ScriptedHandler:
    """A scripted handler: it responds immediately; requests in ``parked`` wait until ``release`` is called for them.

    Attributes:
        began: the member ids of the heartbeats begun, in order.
        parked: member ids whose heartbeats are parked; read when the heartbeat begins.
        hosts: the client hosts seen.
    """

    def __init__(self, *parked: str) -> None:
        self.began: list[str] = []
        self.parked = set(parked)
        self.hosts: set[str] = set()
        self._gates: dict[str, asyncio.Event] = {}
        self._news = asyncio.Condition()

    async def handle(
        self, request: Request, *, client_host: str, client_id: str = "", principal: str | None = ""
    ) -> Response:
        self.hosts.add(client_host)
        match request:
            case HeartbeatRequest():
                return await self._heartbeat(request)
            case PrepareRequest():
                return PrepareResponse(group_epoch=7, assignor_name=request.group_id)
            case InstallRequest():
                return InstallResponse(error_message="installed")
            case UpdateConnectorsRequest():
                return UpdateConnectorsResponse(group_epoch=9)
            case DescribeRequest():
                return DescribeResponse(groups=tuple(DescribedGroup(group_id=group) for group in request.group_ids))
            case _:
                raise AssertionError(f"{type(request).__name__} is no business of a handler")

    async def _heartbeat(self, request: HeartbeatRequest) -> Response:
        name = request.member_id
        self.began.append(name)
        async with self._news:
            self._news.notify_all()
        if name in self.parked:
            await self._gates.setdefault(name, asyncio.Event()).wait()
        if name.startswith("releases "):
            self.release(name.removeprefix("releases "))
        if name == "raises":
            raise RuntimeError("secret")
        if name == "asserts":
            raise AssertionError("a bug")
        if name == "wrong type":
            return DescribeResponse()
        if name == "fenced":
            return HeartbeatResponse(error_code=FencedMemberEpoch.code, error_message=name)
        assignment = None if request.owned is None else HeartbeatAssignment(units=request.owned)
        return HeartbeatResponse(member_epoch=request.member_epoch, error_message=name, assignment=assignment)

    def release(self, name: str) -> None:
        """Let a parked heartbeat continue."""
        self._gates.setdefault(name, asyncio.Event()).set()

    async def has_begun(self, *names: str) -> None:
        """Wait until heartbeats of these names have begun."""
        async with self._news:
            await self._news.wait_for(lambda: set(names) <= set(self.began))


async def message_of(client: Client, name: str, *, timeout_s: float = LONG_S) -> str | None:
    """Send a heartbeat; return the error message of its response."""
    response = await client.call(beat(name), timeout_s=timeout_s)
    assert isinstance(response, HeartbeatResponse)
    return response.error_message


@asynccontextmanager
async def closing(client: Client) -> AsyncIterator[Client]:
    """The client, closed at the end."""
    try:
        yield client
    finally:
        await client.close()


class TransportContract:
    """The contract of ``transport.base.Client``."""

    contract_requires: ClassVar[tuple[str, ...]] = ("serving",)

    def serving(self, handler: ScriptedHandler) -> AbstractAsyncContextManager[Callable[[], Client]]:
        """Serve the handler; yield a function that creates a client of it."""
        raise NotImplementedError

    @pytest.mark.asyncio
    async def test_each_request_is_answered_by_a_response_of_its_own_type(self) -> None:
        stage = ScriptedHandler()
        async with self.serving(stage) as connect, closing(connect()) as client:
            assert await client.call(beat("a"), timeout_s=LONG_S) == HeartbeatResponse(
                member_epoch=1, error_message="a"
            )
            prepare = PrepareRequest(group_id="g", member_id="m", member_epoch=1)
            assert await client.call(prepare, timeout_s=LONG_S) == PrepareResponse(group_epoch=7, assignor_name="g")
            install = InstallRequest(group_id="g", member_id="m", member_epoch=1, group_epoch=7)
            assert await client.call(install, timeout_s=LONG_S) == InstallResponse(error_message="installed")
            update = UpdateConnectorsRequest(group_id="g")
            assert await client.call(update, timeout_s=LONG_S) == UpdateConnectorsResponse(group_epoch=9)
            described = await client.call(DescribeRequest(group_ids=("g", "h")), timeout_s=LONG_S)
            assert described == DescribeResponse(groups=(DescribedGroup(group_id="g"), DescribedGroup(group_id="h")))
            assert len(stage.hosts) == 1
            assert stage.hosts != {""}

    @pytest.mark.asyncio
    async def test_an_error_code_is_an_answer(self) -> None:
        async with self.serving(ScriptedHandler()) as connect, closing(connect()) as client:
            response = await client.call(beat("fenced"), timeout_s=LONG_S)
            assert isinstance(response, HeartbeatResponse)
            assert response.error_code == FencedMemberEpoch.code

    @pytest.mark.asyncio
    async def test_a_thousand_calls_at_a_time_begin_in_order_and_get_their_own_answers(self) -> None:
        stage = ScriptedHandler()
        async with self.serving(stage) as connect, closing(connect()) as client:
            names = [str(number) for number in range(1000)]
            assert await asyncio.gather(*(message_of(client, name) for name in names)) == names
            assert stage.began == names

    @pytest.mark.asyncio
    async def test_a_large_message_passes_both_ways(self) -> None:
        owned = tuple(ConnectorTasks(connector=f"c{n:04}", tasks=tuple(range(100))) for n in range(1000))
        async with self.serving(ScriptedHandler()) as connect, closing(connect()) as client:
            response = await client.call(beat("a", owned=owned), timeout_s=LONG_S)
            assert isinstance(response, HeartbeatResponse)
            assert response.assignment == HeartbeatAssignment(units=owned)

    # ------------------------------------------------------------------------------------------- parking

    @pytest.mark.asyncio
    async def test_a_later_request_runs_while_an_earlier_one_is_parked_and_may_release_it(self) -> None:
        """PD-09: the coordinator answers a member's parked heartbeat when its next one arrives."""
        stage = ScriptedHandler("a")
        async with self.serving(stage) as connect, closing(connect()) as client:
            order: list[str | None] = []
            calls = [asyncio.ensure_future(message_of(client, name)) for name in ("a", "b", "releases a")]
            for call in calls:
                call.add_done_callback(lambda done: order.append(done.result()))
            await asyncio.gather(*calls)
            assert stage.began == ["a", "b", "releases a"]
            assert order == ["a", "b", "releases a"]

    @pytest.mark.asyncio
    async def test_an_answer_waits_for_the_answers_before_it(self) -> None:
        """Kafka's rule for one connection. Another client does not wait."""
        stage = ScriptedHandler("a")
        async with self.serving(stage) as connect, closing(connect()) as client, closing(connect()) as other:
            parked = asyncio.ensure_future(message_of(client, "a"))
            behind = asyncio.ensure_future(message_of(client, "b"))
            await stage.has_begun("a", "b")
            assert await message_of(other, "c") == "c"
            assert not parked.done()
            assert not behind.done()
            stage.release("a")
            assert await parked == "a"
            assert await behind == "b"

    # ------------------------------------------------------------------------------------------- time-outs

    @pytest.mark.asyncio
    async def test_no_answer_in_time_is_an_error_that_says_where_and_what(self) -> None:
        stage = ScriptedHandler("a")
        async with self.serving(stage) as connect, closing(connect()) as client:
            await message_of(client, "first")
            with pytest.raises(TransportError, match=r"no response to HeartbeatRequest in 0.05 s") as caught:
                await message_of(client, "a", timeout_s=0.05)
            assert client.address in str(caught.value)
            assert "\n" not in str(caught.value)
            assert stage.began == ["first", "a"]

    @pytest.mark.asyncio
    async def test_after_an_answer_that_never_came_the_next_call_is_answered(self) -> None:
        """Even though the handler still processes the earlier call: its response must not be matched to the next."""
        stage = ScriptedHandler("a")
        async with self.serving(stage) as connect, closing(connect()) as client:
            with pytest.raises(TransportError):
                await message_of(client, "a", timeout_s=0.05)
            assert await message_of(client, "b") == "b"
            stage.release("a")
            assert await message_of(client, "c") == "c"

    @pytest.mark.asyncio
    async def test_calls_behind_one_that_is_given_up_fail_with_it(self) -> None:
        stage = ScriptedHandler("a")
        async with self.serving(stage) as connect, closing(connect()) as client:
            await message_of(client, "first")
            oldest = asyncio.ensure_future(message_of(client, "a", timeout_s=0.2))
            behind = asyncio.ensure_future(message_of(client, "b"))
            with pytest.raises(TransportError, match="no response to HeartbeatRequest"):
                await oldest
            with pytest.raises(TransportError, match="no response to an earlier HeartbeatRequest"):
                await behind

    @pytest.mark.asyncio
    async def test_a_call_that_times_out_behind_another_leaves_the_other_alone(self) -> None:
        stage = ScriptedHandler("a")
        async with self.serving(stage) as connect, closing(connect()) as client:
            parked = asyncio.ensure_future(message_of(client, "a"))
            await stage.has_begun("a")
            with pytest.raises(TransportError):
                await message_of(client, "b", timeout_s=0.05)
            later = asyncio.ensure_future(message_of(client, "c"))
            await stage.has_begun("c")
            stage.release("a")
            assert await parked == "a"
            assert await later == "c"

    @pytest.mark.asyncio
    async def test_cancelled_call_affects_no_other_call(self) -> None:
        stage = ScriptedHandler("a")
        async with self.serving(stage) as connect, closing(connect()) as client:
            gone = asyncio.ensure_future(message_of(client, "a"))
            kept = asyncio.ensure_future(message_of(client, "b"))
            await stage.has_begun("a", "b")
            gone.cancel()
            await asyncio.wait({gone})
            stage.release("a")
            assert await kept == "b"
            assert await message_of(client, "c") == "c"

    @pytest.mark.asyncio
    async def test_a_call_behind_one_whose_caller_went_away_can_give_the_connection_up(self) -> None:
        """Otherwise no call would: the caller that waited for the oldest response is gone."""
        stage = ScriptedHandler("a")
        async with self.serving(stage) as connect, closing(connect()) as client:
            gone = asyncio.ensure_future(message_of(client, "a"))
            await stage.has_begun("a")
            gone.cancel()
            with pytest.raises(TransportError):
                await message_of(client, "b", timeout_s=0.05)
            assert await message_of(client, "c") == "c"

    # ------------------------------------------------------------------------------------------- failures

    @pytest.mark.asyncio
    @pytest.mark.parametrize("name", ["raises", "asserts", "wrong type"])
    async def test_failed_handler_is_an_error_of_its_call_alone(self, name: str) -> None:
        """D8."""
        async with self.serving(ScriptedHandler()) as connect, closing(connect()) as client:
            before, failed, after = await asyncio.gather(
                message_of(client, "before"),
                client.call(beat(name), timeout_s=LONG_S),
                message_of(client, "after"),
            )
            assert (before, after) == ("before", "after")
            assert isinstance(failed, HeartbeatResponse)
            assert failed.error_code == UnknownServerError.code
            assert "secret" not in str(failed.error_message)

    @pytest.mark.asyncio
    async def test_a_failure_is_reported_for_what_the_request_names(self) -> None:
        """Where a response has no error of its own, clients look for the error of what they asked for."""
        async with self.serving(ScriptedHandler()) as connect, closing(connect()) as client:
            failed = await client.call(DeleteRequest(group_ids=("a", "b")), timeout_s=LONG_S)
            assert isinstance(failed, DeleteResponse)
            results = [(each.group_id, each.error_code) for each in failed.results]
            assert results == [("a", UnknownServerError.code), ("b", UnknownServerError.code)]

    @pytest.mark.asyncio
    async def test_a_closed_client_fails_every_call_outstanding_and_later(self) -> None:
        stage = ScriptedHandler("a")
        async with self.serving(stage) as connect:
            client = connect()
            calls = [asyncio.ensure_future(message_of(client, name)) for name in ("a", "b")]
            await stage.has_begun("a", "b")
            await client.close()
            for call in calls:
                with pytest.raises(TransportError, match="the client is closed"):
                    await call
            with pytest.raises(TransportError, match="the client is closed"):
                await message_of(client, "c")
            await client.close()
            stage.release("a")

    @pytest.mark.asyncio
    async def test_a_client_that_was_never_used_can_be_closed(self) -> None:
        async with self.serving(ScriptedHandler()) as connect:
            await connect().close()

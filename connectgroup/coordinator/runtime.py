"""The coordinator: routes each request to the shard, and combines the descriptions and deletions of several groups.

Members whose process has ended are removed soon after the loss of their connection (PD-13). The kernel closes the
connections of a process that ends, and the coordinator sees that at once; a session timeout takes seconds. A lost
connection alone proves nothing: a worker that lives opens another one, and must not lose its session. So the
coordinator looks whether the process exists, which it can do for a worker on its own machine.

It also looks when a worker cannot join because another process is the member: that one may have ended while there was
no coordinator that could see its connection lost. That is all for a process whose supervisor reports its end: tasks of
a worker that is known to be dead move without the delay of one that is lost.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Final
from weakref import WeakValueDictionary

from ..checks import check_methods, check_object
from ..errors import (
    ConfigError,
    ConnectorNotFound,
    CoordinatorNotAvailable,
    GroupError,
    InvalidRequest,
    UnreleasedInstanceId,
    UnsupportedVersion,
)
from ..group.classic.state import ClassicSettings
from ..group.connect.group_type import ConnectGroupType
from ..group.connect.members import ProcessEnded
from ..group.connect.settings import GroupSettings
from ..group.connect.state import ConnectGroupState
from ..group.kernel.state import Process
from ..group.offsets import (
    MAX_DECIDED,
    Offsets,
    all_committed,
    fetch_of,
    joined_commit,
    joined_deletion,
    joined_fetch,
    slices,
    slices_of_fetch,
)
from ..group.registry import ClientInfo, GroupType, Registry
from ..log.base import Log, SharedLog
from ..os_process import has_ended, is_supervised
from ..protocol.messages.api import Request, Response
from ..protocol.messages.classic import GroupHeartbeatRequest, GroupRequest, JoinGroupRequest, SyncGroupRequest
from ..protocol.messages.cluster import (
    DescribeCoordinatorsRequest,
    DescribeCoordinatorsResponse,
    DescribedCoordinator,
)
from ..protocol.messages.common import SetLoggerLevelRequest, SetLoggerLevelResponse
from ..protocol.messages.connectors import ResetTopicsRequest, ResetTopicsResponse, UpdateConnectorsRequest
from ..protocol.messages.consumer import ConsumerDescribeRequest, ConsumerDescribeResponse, ConsumerHeartbeatRequest
from ..protocol.messages.describe import (
    DeleteGroupsRequest,
    DeleteRequest,
    DeleteResponse,
    DescribedGroup,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    DescribeRequest,
    DescribeResponse,
    ListGroupsRequest,
)
from ..protocol.messages.heartbeat import HeartbeatRequest
from ..protocol.messages.offsets import (
    CommitInTransaction,
    FetchedGroup,
    OffsetCommitRequest,
    OffsetDeleteRequest,
    OffsetFetchRequest,
    OffsetFetchResponse,
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
)
from ..protocol.messages.rejected import rejected
from ..protocol.records.connect import GROUP_TYPE, MemberRecord
from ..protocol.units import JOIN_EPOCH, LEAVE_EPOCH, printable
from ..threads import NoThread, off_loop
from ..wire import embedded
from .compute import with_own_assignor
from .intake import TAKES_LONG, CompletedResponses, Snapshot
from .listing import CLASSIC, SUMMARY, ConsumerGroups, deleted, in_classic_form, listed
from .loading import WriteNumbers
from .progress import LoggerLevels, ReportedProgress
from .shard import Shard
from .transactions import BrokerOffsets, Transactions

_HEARTBEATS: Final = (HeartbeatRequest, ConsumerHeartbeatRequest)


def wall_clock_ms() -> int:
    """Milliseconds since 1970."""
    return time.time_ns() // 1_000_000


class Coordinator:
    """Serves groups from a log: the ``Handler`` behind every transport.

    Attributes:
        shard: the queue and the groups.
        transactions: asks a broker for the outcome of transactions; ``None`` without ``broker_offsets``.
        lost_connections: takes the connections that a transport has lost.
    """

    shard_class: ClassVar[type[Shard]] = Shard

    def __init__(
        self,
        log: Log,
        settings: GroupSettings,
        *,
        wall_clock_ms: Callable[[], int] = wall_clock_ms,
        classic_settings: ClassicSettings | None = None,
        consumers: ConsumerGroups | None = None,
        broker_offsets: BrokerOffsets | None = None,
        group_types: Sequence[GroupType] = (),
    ) -> None:
        """Create a coordinator. It serves no requests until ``start``.

        Args:
            log: ``start`` opens it and takes ownership for this process.
            settings: for all groups. If they name an assignor without containing it, its entry point is loaded.
            wall_clock_ms: the clock for timestamps in records; timers use the event loop's clock.
            classic_settings: for all groups of type ``classic``, without ``consumers``; the defaults if ``None``.
            consumers: consumer groups, with the settings of classic groups and the topics of their cluster; if
                ``None``, consumers of the new protocol cannot join.
            broker_offsets: the offsets that a broker has of the groups, for transactions; if ``None``, there are none.
            group_types: the types of groups to serve besides ``connect``, ``classic`` and ``consumer``.

        Raises:
            ConfigError: ``log`` is no log, or ``settings`` are no ``GroupSettings``.
        """
        check_methods("log", log, ("append", "load"), 'a log: MemoryLog(), or log_from_url("sqlite:///PATH")')
        check_object("settings", settings, GroupSettings, "GroupSettings(...)")
        self._log = log
        self._lease = log if isinstance(log, SharedLog) else None
        self._clock_s: Callable[[], float] = time.monotonic  # ``start`` sets that of the event loop
        self._started = False  # ``start`` sets it
        self._wall_clock_ms, self._since_ms = wall_clock_ms, -1  # since when it serves; ``start`` sets it
        self._progress = ReportedProgress(wall_clock_ms)
        self._copying = asyncio.Lock()  # one copy of a large group at a time
        self._copying_for: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()  # by principal
        self._logger_levels = LoggerLevels(wall_clock_ms)
        self._completed = CompletedResponses()
        self._connect_type = connect = ConnectGroupType(with_own_assignor(settings), embedded)
        self._consumers = consumers or ConsumerGroups(classic=classic_settings)
        self._consumer_type = self._consumers.group_type
        self._registry = Registry([connect, self._consumers.classic_type, self._consumer_type, *group_types])
        self.shard = self.shard_class(
            log,
            self._registry,
            clock_ms=wall_clock_ms,
            max_groups=settings.max_groups,
            in_flight_s=4 * settings.session_timeout_ms / 1000,
            on_deleted=self._forget,
            on_loaded=self._progress.restore,
            with_numbers=self._progress.with_numbers,
            due=self._progress.due,
        )
        self.lost_connections = LostConnections(
            self.shard.intake.submit_input, self._worker, grace_s=settings.connection_loss_grace_ms / 1000
        )
        self.transactions = Transactions(self.shard, broker_offsets) if broker_offsets is not None else None

    def _forget(self, group_id: str) -> None:
        self._progress.forget(group_id)
        self._logger_levels.forget(group_id)

    async def start(self) -> None:
        """Take ownership of the log, replay it to its end, then serve, in that order (D4).

        Raises:
            LogError: the log cannot be opened or read at all. If a single group cannot be read, the coordinator
                rejects the requests for that group and serves the others.
        """
        self._started = True
        self._since_ms = self._wall_clock_ms()
        self._clock_s = asyncio.get_running_loop().time
        try:
            await self._consumers.start(self.shard)
            await self.shard.start()
        except BaseException:
            await self._consumers.close()
            raise
        if self.transactions is not None:
            self.transactions.start()

    def not_heard_since(self, at_ms: int) -> None:
        """Say, before the first request, when the coordinator before this one was last alive: the units of members that
        ended with it have been down since then."""
        for group in self.shard.groups.loaded.values():
            if isinstance(group.state, ConnectGroupState):
                group.state.unheard = dict.fromkeys(group.state.members, at_ms)

    async def close(self) -> None:
        """Stop serving: parked requests are rejected with a retriable error, timers are cancelled."""
        self.lost_connections.close()
        if self.transactions is not None:
            await self.transactions.close()
        await self._consumers.close()
        await self.shard.close(self._progress.unwritten)

    def on_connection_lost(self, request: Request, principal: str) -> None:
        """See ``TcpServer``."""
        if isinstance(request, ConsumerHeartbeatRequest):
            self._leave_unanswered(request, principal)
        else:
            self.lost_connections.on_lost(request, principal)

    def _leave_unanswered(self, join: ConsumerHeartbeatRequest, principal: str) -> None:
        """Remove a consumer that has gone while its join was parked: without a response it is no member to itself, so
        it does not leave, and would be assigned partitions until its session timeout. If it lives, it joins again."""
        parked = self.shard.parking.parked.get((join.group_id, join.member_id))
        if parked is None or parked.what is not join or join.member_epoch != JOIN_EPOCH or join.instance_id is not None:
            return
        leave = ConsumerHeartbeatRequest(group_id=join.group_id, member_id=join.member_id, member_epoch=LEAVE_EPOCH)
        self.begin(leave, client_host="", client_id="", principal=principal, respond=lambda response: None)

    async def handle(
        self, request: Request, *, client_host: str, client_id: str = "", principal: str | None = ""
    ) -> Response:
        """Handle one request and return its response; see ``protocol.messages.api.Handler``.

        Raises:
            ConfigError: ``start`` has not been called.
        """
        if not self._started:
            raise ConfigError("coordinator", "a request before the start", "await coordinator.start() first")
        if (refused := self.shard.intake.not_serving) is not None:
            return self.refusal(request, refused)  # also of a list of groups, which would be empty
        response = await self._handled(request, ClientInfo(client_host, client_id, principal))
        return response if self._owns_log() else self._refused_late(request)

    def _owns_log(self) -> bool:
        """Whether no other coordinator has served yet; read *after* a response was decided (``SharedLog``, point 8)."""
        return self._lease is None or self._clock_s() < self._lease.lease_ends_s

    def _refused_late(self, request: Request) -> Response:
        why = "the lease of this coordinator has expired; the outcome of the request is unknown"
        return self.refusal(request, CoordinatorNotAvailable(why))

    def refusal(self, request: Request, error: GroupError) -> Response:
        """The response of the request's own type that carries the error."""
        group_type = self._registry.owner(request)
        if group_type is None:
            return self._with_epoch(request, rejected(request, error.code, str(error)))
        return self._with_epoch(request, group_type.error_response(request, error))

    async def _handled(self, request: Request, client: ClientInfo) -> Response:
        response: Any
        if isinstance(request, _HEARTBEATS):  # first, because nearly all requests are
            decided = self._unchanged(request, client)
            return self._heartbeat_decided(
                request, await self.shard.submit(request, client) if decided is None else decided
            )
        if isinstance(request, SetLoggerLevelRequest):
            response = await self._set_logger_level(request, client)
        elif isinstance(request, ResetTopicsRequest):
            response = await self._reset_topics(request, client)
        elif isinstance(request, DescribeCoordinatorsRequest):
            itself = DescribedCoordinator(address="", epoch=self._log.epoch, since_ms=self._since_ms)
            response = DescribeCoordinatorsResponse(coordinators=(itself,))
        elif isinstance(request, DescribeRequest):
            response = DescribeResponse(
                groups=tuple([await self._describe(request, each, client) for each in self._named(request)])
            )
        elif isinstance(request, DeleteRequest):
            response = await self._delete(request, client)
        elif isinstance(request, OffsetFetchRequest) and request.groups:
            await self._before_fetch(dict.fromkeys(each.group_id for each in request.groups))
            response = await self._fetch_offsets(request, client)
        elif isinstance(request, ListGroupsRequest):
            summaries = [await self._describe(SUMMARY, each, client) for each in self._named(SUMMARY)]
            response = listed(summaries, request)
        elif isinstance(request, DescribeGroupsRequest):
            described = [await self._describe(CLASSIC, each, client) for each in dict.fromkeys(request.groups)]
            response = DescribeGroupsResponse(groups=tuple(in_classic_form(each, request) for each in described))
        elif isinstance(request, DeleteGroupsRequest):
            response = deleted(await self._delete(DeleteRequest(group_ids=request.groups_names), client))
        elif isinstance(request, ConsumerDescribeRequest):
            response = await self._describe_consumers(request, client)
        elif isinstance(request, OffsetCommitRequest):
            await self._consumers.look_again(request)
            response = joined_commit(request, await self.shard.submit_all(slices(request), client))
        elif isinstance(request, OffsetDeleteRequest):
            response = joined_deletion(request, await self.shard.submit_all(slices(request), client))
        elif isinstance(request, OffsetFetchRequest):
            await self._before_fetch((request.group_id,))
            response = await self._fetch(request, client)
        else:
            if isinstance(request, TxnOffsetCommitRequest):
                raise UnsupportedVersion("TxnOffsetCommit: transactions are a broker's; connect to connectgroup proxy")
            response = await self.shard.submit(request, client)
            if isinstance(request, JoinGroupRequest) and response.error_code == UnreleasedInstanceId.code:
                self._look_for_process(request)
            elif isinstance(request, UpdateConnectorsRequest) and response.error_code == 0:
                gone = {each.connector for each in request.changes if each.delete}
                self._progress.forget_connectors(request.group_id, gone)
        if isinstance(request, GroupHeartbeatRequest) and not self._is_of_consumers(request):
            response = self._logger_levels.add_to(response, request)
        return self._with_epoch(request, response)

    def _with_epoch(self, request: Request, response: Any) -> Response:
        """Workers ignore responses of a lower coordinator epoch (D5). Kafka's own protocol has no such field."""
        if hasattr(response, "coordinator_epoch") and not self._is_of_consumers(request):
            response = replace(response, coordinator_epoch=self._log.epoch)
        answered: Response = response
        return answered

    def _is_of_consumers(self, request: Request) -> bool:
        """Whether a request of the classic protocol is for a group of another type than ``connect``."""
        loaded = self.shard.groups.loaded.get(request.group_id) if isinstance(request, GroupRequest) else None
        return loaded is not None and loaded.group_type.name != GROUP_TYPE

    def begin(
        self,
        request: Request,
        *,
        client_host: str,
        client_id: str,
        principal: str | None,
        respond: Callable[[Response], None],
    ) -> bool:
        """Begin to process a heartbeat, without a task for it; see ``protocol.messages.api.DirectHandler``."""
        if not self._started or not isinstance(request, _HEARTBEATS):
            return False
        client = ClientInfo(client_host, client_id, principal)
        decided = self._unchanged(request, client)
        if decided is not None:
            respond(self._heartbeat_decided(request, decided))
            return True
        self.shard.begin(request, client, lambda response: respond(self._heartbeat_decided(request, response)))
        return True

    def _unchanged(self, request: HeartbeatRequest | ConsumerHeartbeatRequest, client: ClientInfo) -> Any:
        """The response to a heartbeat that need not wait for a turn, or ``None`` (``Shard.unchanged``)."""
        if isinstance(request, HeartbeatRequest) and request.progress:
            loaded = self.shard.groups.loaded.get(request.group_id)
            self._progress.record(loaded.state if loaded is not None else None, request)
        is_of_consumer = isinstance(request, ConsumerHeartbeatRequest)
        return self.shard.unchanged(self._consumer_type if is_of_consumer else self._connect_type, request, client)

    def _heartbeat_decided(self, request: HeartbeatRequest | ConsumerHeartbeatRequest, response: Any) -> Response:
        """The response to a heartbeat, with what the rules of its group do not know."""
        if not self._owns_log():
            return self._refused_late(request)
        if isinstance(request, ConsumerHeartbeatRequest):
            answered: Response = response  # of Kafka's own protocol
            return answered
        if response.error_code == 0:
            loaded = self.shard.groups.loaded.get(request.group_id)
            state = loaded.state if loaded is not None else None
            if request.progress or request.statuses or request.log_lines or request.started_ms:
                self._progress.record_accepted(state, request)
            may_end_tasks = request.progress or request.owned is not None or request.member_epoch < 0
            if may_end_tasks and self._progress.has_last_numbers(state):
                self.shard.intake.submit_input(request.group_id, WriteNumbers())
        elif response.error_code == UnreleasedInstanceId.code:
            self._look_for_process(request)
        levelled = self._logger_levels.add_to(response, request)
        return self._completed.of(levelled, self._log.epoch, self.shard.traces.traceparent(request, levelled))

    async def _set_logger_level(self, request: SetLoggerLevelRequest, client: ClientInfo) -> Response:
        described = await self._describe(SUMMARY, request.group_id, client)
        if described.error_code:
            return rejected(request, described.error_code, described.error_message)
        try:
            self._logger_levels.set(request)
        except GroupError as error:
            return rejected(request, error.code, str(error))
        return SetLoggerLevelResponse()

    async def _reset_topics(self, request: ResetTopicsRequest, client: ClientInfo) -> Response:
        named = DescribeRequest(group_ids=(request.group_id,), connectors=(request.connector,), connectors_only=True)
        described = await self._describe(named, request.group_id, client)
        if described.error_code:
            return rejected(request, described.error_code, described.error_message)
        if not described.connectors:
            return rejected(request, ConnectorNotFound.code, f"Connector {printable(request.connector)} not found")
        self._progress.reset_topics(request.group_id, request.connector)
        return ResetTopicsResponse()

    def _look_for_process(self, refused: HeartbeatRequest | JoinGroupRequest) -> None:
        """Look whether the member that a process cannot replace belongs to a process that has ended."""
        member = self._worker(refused.group_id, refused.member_id)
        if member is not None:
            self.lost_connections.on_refused_join(refused.group_id, member)

    def _worker(self, group_id: str, member_id: str) -> MemberRecord | None:
        """The member of a connect group."""
        loaded = self.shard.groups.loaded.get(group_id)
        member = loaded.state.members.get(member_id) if loaded is not None else None
        return member if isinstance(member, MemberRecord) else None

    def _named(self, request: DescribeRequest) -> Sequence[str]:
        """The groups to describe: each once, however often it is named, since a description may take megabytes."""
        return tuple(dict.fromkeys(request.group_ids)) or self.shard.groups.group_ids()

    async def _describe(self, request: DescribeRequest, group_id: str, client: ClientInfo) -> DescribedGroup:
        described = await self._described(request, group_id, client)
        error = self.shard.writability.error
        return replace(described, log_error=error) if error else described

    async def _described(self, request: DescribeRequest, group_id: str, client: ClientInfo) -> DescribedGroup:
        described = await self.shard.describe(request, group_id, client)
        if described is TAKES_LONG:
            # At most one of each principal waits for the others: a user who asks for many delays no other user.
            own_turn = self._copying_for.setdefault(client.principal or "", asyncio.Lock())
            async with own_turn, self._copying:
                described = await self.shard.describe(request, group_id, client, copies=True)
                if isinstance(described, Snapshot):
                    return await self._describe_in_thread(described, request, group_id)
        assert isinstance(described, DescribedGroup)
        return self._progress.of(group_id, request).add_to(described)

    async def _describe_in_thread(self, snapshot: Snapshot, request: DescribeRequest, group_id: str) -> DescribedGroup:
        progress = self._progress.snapshot(group_id, request)

        def describe() -> DescribedGroup:
            return progress.add_to(snapshot.described())

        try:
            return await off_loop(f"describe {printable(group_id)}", describe)
        except NoThread:
            return describe()

    async def commit_in_transaction(self, commit: CommitInTransaction, *, client_host: str) -> TxnOffsetCommitResponse:
        """Store the offsets of a TxnOffsetCommit that the broker has accepted, until its transaction ends."""
        parts = [replace(commit, request=each) for each in slices(commit.request)]
        response: Response
        response = joined_commit(commit.request, await self.shard.submit_all(parts, ClientInfo(client_host)))
        if not self._owns_log():
            response = self._refused_late(commit.request)
        assert isinstance(response, TxnOffsetCommitResponse)
        if self.transactions is not None:
            self.transactions.on_commit(commit.group_id)
        return response

    async def _before_fetch(self, group_ids: Iterable[str]) -> None:
        """Learn what has happened to topics and transactions since, before committed offsets are fetched."""
        await self._consumers.look_again()
        if self.transactions is not None:
            for group_id in group_ids:
                await self.transactions.settle(group_id)

    async def _fetch_offsets(self, request: OffsetFetchRequest, client: ClientInfo) -> OffsetFetchResponse:
        fetched: list[FetchedGroup] = []
        asked: set[str] = set()
        for each in request.groups:
            if each.group_id in asked:
                # A request has room for one name a thousand times, and a group for megabytes of offsets.
                fetched.append(FetchedGroup(group_id=each.group_id, error_code=InvalidRequest.code))
                continue
            asked.add(each.group_id)
            fetched += (await self._fetch(replace(request, groups=(each,)), client)).groups
        return OffsetFetchResponse(groups=tuple(fetched))

    async def _fetch(self, request: OffsetFetchRequest, client: ClientInfo) -> OffsetFetchResponse:
        """Fetch offsets of one group: many in parts, so that heartbeats pass between them."""
        group_id = request.groups[0].group_id if request.groups else request.group_id
        asked = request.groups[0].topics if request.groups else request.topics
        found: OffsetFetchResponse
        if asked is None:
            has_many = len(self._offsets(group_id)) > MAX_DECIDED
            # Of many, no topic at first: whether the sender may; and its earlier commits are decided then.
            found = await self.shard.submit(fetch_of(request, ()) if has_many else request, client)
            if found.first.error_code or not has_many:
                return found
            asked = all_committed(self._offsets(group_id), request, self._consumers.classic_type.topics)
        return joined_fetch(request, asked, await self.shard.submit_all(slices_of_fetch(request, asked), client))

    def _offsets(self, group_id: str) -> Offsets:
        """The offsets of a group; empty if there is no such group, or it has none."""
        loaded = self.shard.groups.loaded.get(group_id)
        found = getattr(loaded.state, "offsets", None) if loaded is not None else None
        return found if isinstance(found, Offsets) else Offsets()

    async def _describe_consumers(
        self, request: ConsumerDescribeRequest, client: ClientInfo
    ) -> ConsumerDescribeResponse:
        names = dict.fromkeys(request.group_ids)
        responses = [await self.shard.submit(replace(request, group_ids=(name,)), client) for name in names]
        return ConsumerDescribeResponse(groups=tuple(group for response in responses for group in response.groups))

    async def _delete(self, request: DeleteRequest, client: ClientInfo) -> DeleteResponse:
        responses = [await self.shard.submit(DeleteRequest(group_ids=(name,)), client) for name in request.group_ids]
        return DeleteResponse(results=tuple(result for response in responses for result in response.results))


FIRST_LOOK_S = 0.01
"""Wait before the second look; doubled for each further one: a process ends shortly after its connections."""

MAX_LOOKS = 1_000
"""Processes that are looked for at a time: any client may open and close connections. The members of others are removed
at their session timeouts."""


class LostConnections:
    """Looks for the processes behind lost connections.

    Attributes:
        has_ended: whether the process with a name (``HeartbeatRequest.os_process``) has ended.
    """

    def __init__(
        self,
        submit: Callable[[str, ProcessEnded], None],
        member_of: Callable[[str, str], MemberRecord | None],
        *,
        grace_s: float,
    ) -> None:
        """Look for no process yet.

        Args:
            submit: takes a group and one of its inputs.
            member_of: the member of a connect group with a member id.
            grace_s: how long to look for a process; 0: not.
        """
        self.has_ended = has_ended
        self._submit, self._member_of, self._grace_s = submit, member_of, grace_s
        self._looking: set[asyncio.Task[None]] = set()  # one for each process that is looked for

    def on_lost(self, request: Request, principal: str | None = "") -> None:
        """A connection of a principal is lost; ``request`` is the last one that was received on it.

        The request names a process to look for. If the member belongs to another principal, the name may be that of any
        process, and the end of that process removes no member.
        """
        if len(self._looking) >= MAX_LOOKS or not self._grace_s:
            return
        sender: HeartbeatRequest | MemberRecord | None = None
        if isinstance(request, HeartbeatRequest):
            sender = request
        elif isinstance(request, JoinGroupRequest | SyncGroupRequest | GroupHeartbeatRequest):
            # Most requests of the classic protocol do not name the process: its join did.
            sender = self._member_of(request.group_id, request.member_id)
        if sender is not None and sender.os_process and not is_supervised(sender.os_process):
            ended = ProcessEnded(sender.member_id, Process(sender.process_id, principal))
            task = asyncio.get_running_loop().create_task(self._look(sender, ended))
            self._looking.add(task)
            task.add_done_callback(self._looking.discard)

    def on_refused_join(self, group_id: str, member: MemberRecord) -> None:
        """A process cannot join because this member exists. It retries, so one look is enough."""
        if member.os_process and self._grace_s and self.has_ended(member.os_process):
            self._submit(group_id, ProcessEnded(member.member_id, Process(member.process_id, member.principal)))

    async def _look(self, sender: HeartbeatRequest | MemberRecord, ended: ProcessEnded) -> None:
        loop = asyncio.get_running_loop()
        ends_s, wait_s = loop.time() + self._grace_s, FIRST_LOOK_S
        while not self.has_ended(sender.os_process):
            left_s = ends_s - loop.time()
            if left_s <= 0:
                return
            await asyncio.sleep(min(wait_s, left_s))
            wait_s *= 2
        self._submit(sender.group_id, ended)

    def close(self) -> None:
        """Stop looking."""
        self._grace_s = 0.0
        for task in self._looking:
            task.cancel()

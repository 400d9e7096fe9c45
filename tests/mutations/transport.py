"""Limits of peers and the order of answers: ``transport/``."""

from __future__ import annotations

from .mutant import Mutant

SERVER = "connectgroup/transport/tcp_server.py"
CLIENT = "connectgroup/transport/tcp_client.py"
BASE = "connectgroup/transport/base.py"

SERVER_TESTS = "tests/transport/test_tcp_server.py"
CLIENT_TESTS = "tests/transport/test_tcp_client.py"
SMALL_PRINT = "tests/transport/test_small_print.py"

EXHAUSTION = "tests/cli/test_exhaustion.py"

TRANSPORT: tuple[Mutant, ...] = (
    Mutant(
        name="a server without descriptors tries a thousand times in one turn of the loop",
        file=SERVER,
        old="ssl=self._tls, backlog=1\n",
        new="ssl=self._tls, backlog=_BACKLOG\n",
        tests=EXHAUSTION,
    ),
    Mutant(
        name="a server has one place for those who wait to be taken in",
        file=SERVER,
        old="                    same.listen(_BACKLOG)\n",
        new="                    pass\n",
        tests=f"{SERVER_TESTS}::test_as_many_may_come_at_the_same_moment_as_there_are_workers",
    ),
    Mutant(
        name="a client that cannot look a name up for want of a thread ends its worker",
        file=BASE,
        old="    except RuntimeError as error:\n",
        new="    except LookupError as error:\n",
        tests=f"{CLIENT_TESTS}::test_a_name_that_cannot_be_looked_up_for_want_of_a_thread",
    ),
    Mutant(
        name="a server takes frames of any length",
        file=SERVER,
        old="self._reader = FrameReader(server.limits.max_frame_bytes)",
        new="self._reader = FrameReader(0x7FFFFFFF)",
        tests=f"{SERVER_TESTS}::test_lost_framing_closes_that_connection_and_no_other",
    ),
    Mutant(
        name="a connection on which framing was lost goes on",
        file=SERVER,
        old="        self._stopped = True\n        self._frames.clear()\n        self._transport.close()\n",
        new="        self._frames.clear()\n",
        tests=f"{SERVER_TESTS}::test_lost_framing_closes_that_connection_and_no_other",
    ),
    Mutant(
        name="half a frame may wait for its rest for ever",
        file=SERVER,
        old="if self._waits_for_frame and now - self._frame_began_at > limits.frame_deadline_s:",
        new="if self._waits_for_frame and now - self._frame_began_at < 0:",
        tests=f"{SERVER_TESTS}::test_half_a_frame_and_then_silence_is_closed",
    ),
    Mutant(
        name="a byte now and then prolongs the deadline of a frame",
        file=SERVER,
        old="        if frames or not self._waits_for_frame:\n",
        new="        if data:\n",
        tests=f"{SERVER_TESTS}::test_dripping_bytes_does_not_prolong_the_deadline_of_a_frame",
    ),
    Mutant(
        name="a connection that never says anything stays open",
        file=SERVER,
        old="        self._waits_for_frame = True\n        self._choked_at",
        new="        self._waits_for_frame = False\n        self._choked_at",
        tests=f"{SERVER_TESTS}::test_half_a_frame_and_then_silence_is_closed",
    ),
    Mutant(
        name="an idle connection stays open for ever",
        file=SERVER,
        old="        if now - self._heard_at > limits.idle_deadline_s:\n",
        new="        if now - self._heard_at < 0:\n",
        tests=f"{SERVER_TESTS}::test_an_idle_connection_is_closed_but_not_one_whose_request_is_parked",
    ),
    Mutant(
        name="a connection whose request is parked counts as idle",
        file=SERVER,
        old='        if self._paused or len(self.conversation):\n            return ""\n',
        new="",
        tests=SMALL_PRINT,
    ),
    Mutant(
        name="a peer that never reads its answers is never closed",
        file=SERVER,
        old="            late = now - self._choked_at > limits.unsent_deadline_s\n",
        new="            late = now < self._choked_at\n",
        tests=f"{SERVER_TESTS}::test_a_peer_that_never_reads_its_answers_is_not_read_from_and_then_closed",
    ),
    Mutant(
        name="a peer that does not read its answers is read from all the same",
        file=SERVER,
        old="return not self._stopped and self._choked_at is None and len(",
        new="return not self._stopped and len(",
        tests=f"{SERVER_TESTS}::test_what_a_peer_can_send_without_reading_its_answers_is_bounded",
    ),
    Mutant(
        name="any number of requests of one connection run at a time",
        file=SERVER,
        old=" and len(self.conversation) < self._limits.max_in_flight\n",
        new="\n",
        tests=SERVER_TESTS,
    ),
    Mutant(
        name="a server takes one connection more than it may",
        file=SERVER,
        old="        if len(self._connections) >= limits.max_connections:\n",
        new="        if len(self._connections) > limits.max_connections:\n",
        tests=f"{SMALL_PRINT}::test_a_connection_over_a_cap_is_closed_at_once_and_nothing_of_it_is_read",
    ),
    Mutant(
        name="one address may take all connections",
        file=SERVER,
        old="        if self._by_host[host] >= most:\n",
        new="        if self._by_host[host] < 0:\n",
        tests=f"{SERVER_TESTS}::test_a_lost_connection_counts_until_its_last_request_is_done",
    ),
    Mutant(
        name="a lost connection no longer counts while its requests run",
        file=SERVER,
        old="        if not self.conversation:\n            self._server.release(self)\n\n    def stop_reading",
        new="        self._server.release(self)\n\n    def stop_reading",
        tests=f"{SERVER_TESTS}::test_a_lost_connection_counts_until_its_last_request_is_done",
    ),
    Mutant(
        name="answers leave as they come and not in the order of the requests",
        file=BASE,
        old="        turn.done = True\n        self._flush()\n",
        new=(
            "        turn.done = True\n"
            "        self._turns.remove(turn)\n"
            "        self._turns.appendleft(turn)\n"
            "        self._flush()\n"
        ),
        tests=f"tests/transport/test_local.py {SERVER_TESTS}",
    ),
    Mutant(
        name="a handler that raises is answered with nothing",
        file=BASE,
        old=(
            '            turn.response = refusal(key, UnknownServerError.code, f"the server failed: '
            '{type(error).__name__}")\n'
        ),
        new="            turn.response = None\n",
        tests="tests/transport/test_local.py::TestLocalTransport::test_a_handler_that_fails_is_answered_for_and_nobody_else_notices",
    ),
    Mutant(
        name="an answer to another request is taken",
        file=CLIENT,
        old="if len(message) < 4 or _CORRELATION_ID.unpack_from(message)[0] != call.correlation_id:",
        new="if len(message) < 4:",
        tests=CLIENT_TESTS,
    ),
    Mutant(
        name="a connection on which the oldest answer does not come is kept",
        file=CLIENT,
        old="            if link.is_oldest(answer):\n",
        new="            if answer is None:\n",
        tests=f"{SERVER_TESTS}::TestTcpTransport {CLIENT_TESTS}",
    ),
    Mutant(
        name="one call that is given up takes the connection from all",
        file=CLIENT,
        old="            if link.is_oldest(answer):\n",
        new="            if answer is not None:\n",
        tests=f"{SERVER_TESTS}::TestTcpTransport {CLIENT_TESTS}",
    ),
    Mutant(
        name="calls outstanding on a lost connection wait for ever (L7)",
        file=CLIENT,
        old='                call.answer.set_exception(TransportError(f"{self._address}: {why}"))\n',
        new="                pass\n",
        tests=f"{CLIENT_TESTS}::test_a_connection_that_is_lost_fails_all_calls_and_the_next_call_connects_again",
    ),
    Mutant(
        name="a Kafka broker is taken for a coordinator of ours",
        file=CLIENT,
        old="        if not self.agreed:\n            api",
        new="        if not self._versions:\n            api",
        tests=CLIENT_TESTS,
    ),
)

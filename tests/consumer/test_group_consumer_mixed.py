"""Mixed groups on a real broker: a ``GroupConsumer`` beside Java's consumer and librdkafka's.

Every member is a separate process, and reports its partitions and records with the machine's clock; no test relies on
the broker's description of the group.
"""

from __future__ import annotations

import signal
from collections.abc import Sequence
from typing import TYPE_CHECKING

from connectgroup.consumer.errors import Code
from tests.volume import SIZE, ci_only

from .conftest import NewGroup

if TYPE_CHECKING:
    from .members import BrokerGroup, BrokerMember


def test_consumer_leads_a_group_of_java_and_librdkafka_members(new_group: NewGroup) -> None:
    """The first member is the leader: Java's and librdkafka's consumers accept the result of an assignor in Python."""
    with new_group("leads", partitions=9) as group:
        group.write(90)
        ours = group.ours("ours", "cooperative-sticky")
        ours.until("assigned")
        java = group.java("java", "cooperative-sticky")
        rdkafka = group.librdkafka("librdkafka", "cooperative-sticky")
        group.wait_until_balanced(ours, java, rdkafka)
        ours.until_round(leader=True, assignor="cooperative-sticky")
        group.write(900)
        group.wait_until_read()

        ours.stop()
        group.wait_until_balanced(java, rdkafka)
        group.write(90)
        group.wait_until_read()
        group.assert_single_owner()


def test_consumer_follows_java_and_leads_after_it(new_group: NewGroup) -> None:
    with new_group("follows", partitions=6) as group:
        group.write(60)
        java = group.java("java", "cooperative-sticky")
        java.until("assigned")
        ours = group.ours("ours", "cooperative-sticky")
        group.wait_until_balanced(java, ours)
        ours.until_round(leader=False)
        group.write(600)
        group.wait_until_read()

        java.stop()
        group.wait_until_balanced(ours)
        ours.until_round(leader=True)
        group.write(60)
        group.wait_until_read()
        group.assert_single_owner()


@ci_only("nine restarts of clients; in a user's run, Java and librdkafka in one group above, and proxy/test_migration")
def test_mixed_group_is_migrated_to_cooperative_and_back_by_rolling_restarts(new_group: NewGroup) -> None:
    """KIP-429, "Compatibility and Upgrade Path": range, then both, then cooperative-sticky; and the same way back."""
    with new_group("bounces", partitions=6) as group:
        one, two, java = group.ours("ours-1", "range"), group.ours("ours-2", "range"), group.java("java-1", "range")
        group.wait_until_balanced(one, two, java)

        def bounce(number: int, assignors: Sequence[str], *, then: str) -> None:
            """Restart every member in turn with other assignors; ``then``: the assignor in use afterwards."""
            nonlocal one, two, java
            java.stop()
            java = _replaced(group, group.java(f"java-{number}", *assignors), one, two)
            one.stop()
            one = _replaced(group, group.ours(f"ours-{number}a", *assignors), two, java)
            two.stop()
            two = _replaced(group, group.ours(f"ours-{number}b", *assignors), one, java)
            group.wait_until_read()
            one.until_round(assignor=then)
            two.until_round(assignor=then)

        bounce(2, ["range", "cooperative-sticky"], then="range")
        bounce(3, ["cooperative-sticky"], then="cooperative-sticky")
        # librdkafka rejects a list with assignors of both protocols, so it joins only the group in its present state.
        rdkafka = _replaced(group, group.librdkafka("librdkafka", "cooperative-sticky"), one, two, java)
        rdkafka.stop()
        group.wait_until_balanced(one, two, java)
        if SIZE != "user":  # half a minute; in a user's run, test_rounds has every choice of an assignor
            bounce(4, ["range", "cooperative-sticky"], then="range")
            bounce(5, ["range"], then="range")

        group.assert_single_owner()
        # Java commits before it rejoins and reads on while it waits; what it revokes after that may be read again.
        assert not group.read_more_than_once(first_by="ours"), "ours commits all read records before a revocation"


def _replaced(group: BrokerGroup, member: BrokerMember, *others: BrokerMember) -> BrokerMember:
    """Keep writing while a member joins, until it has its partitions."""
    group.write(30)
    group.wait_until_balanced(member, *others)
    group.write(30)
    return member


def test_killed_and_suspended_members_are_replaced(
    new_group: NewGroup,
) -> None:
    """kill -9 of Java, SIGSTOP of ours, for longer than the session timeout; uncommitted records are read again.

    The paused member tries to commit its lost partitions under its old id; the broker rejects the commit.
    """
    with new_group("dies", partitions=6) as group:
        group.write(60)
        ours, stays = group.ours("ours", "cooperative-sticky"), group.ours("stays", "cooperative-sticky")
        java = group.java("java", "cooperative-sticky")
        group.wait_until_balanced(ours, stays, java)
        before = ours.owned
        group.write(60)
        group.wait_until_read()
        ours.signal(signal.SIGSTOP)
        java.kill()
        group.write(600)
        group.wait_until(lambda: stays.owned == frozenset(range(6)), "the remaining member to own all partitions")
        group.wait_until_read()

        ours.signal(signal.SIGCONT)
        lost = ours.until("lost")
        assert frozenset(lost.what) == before
        assert ours.until("late commit").what == [Code.UNKNOWN_MEMBER_ID]
        group.wait_until_balanced(ours, stays)
        group.write(60)
        group.wait_until_read()
        group.assert_single_owner(but=[ours])


def test_consumer_shares_a_group_with_members_of_the_new_protocol(new_group: NewGroup) -> None:
    """KIP-848, "Consumer Group Upgrade": the coordinator assigns for classic members while others are in the group."""
    with new_group("new", partitions=6) as group:
        group.write(60)
        new = group.librdkafka("new")
        new.until("assigned")
        ours = group.ours("ours", "cooperative-sticky")
        group.wait_until_balanced(new, ours)
        group.write(600)
        group.wait_until_read()
        new.stop()
        group.wait_until_balanced(ours)
        ours.until_round(leader=True)
        another = group.librdkafka("another")
        group.wait_until_balanced(ours, another)
        group.write(60)
        group.wait_until_read()
        ours.stop()
        group.wait_until_balanced(another)
        group.assert_single_owner()
        assert not group.read_more_than_once(first_by="ours")


def test_python_assignor_assigns_java_members(new_group: NewGroup) -> None:
    """Under a name that Java offers too; the Java member accepts the leader's assignment."""
    with new_group("custom", partitions=5) as group:
        group.write(50)
        ours = group.ours("ours", "Favouring")
        ours.until("assigned")
        java = group.java("java", "range")
        group.wait_until(lambda: java.owned == {0} and ours.owned == {1, 2, 3, 4}, "Java to have 0, ours the rest")
        group.write(500)
        group.wait_until_read()
        group.assert_single_owner()
        assert not group.read_more_than_once(first_by="ours")


def test_leader_with_a_failing_assignor_leaves_and_the_group_continues(
    new_group: NewGroup,
) -> None:
    """No partition is revoked because of an assignor that failed, and the leader commits before it leaves."""
    with new_group("fails", partitions=4) as group:
        group.write(400)
        ours = group.ours("ours", "FailsAtThree")
        ours.until("assigned")
        java = group.java("java-1", "cooperative-sticky")
        group.wait_until_balanced(ours, java)
        group.wait_until_read()
        another = group.java("java-2", "cooperative-sticky")
        failed = ours.until("failed").more
        assert failed["kind"] == "PluginError"
        assert failed["error"] == (
            "assignor 'cooperative-sticky' (__main__.FailsAtThree): assign raised ValueError: two is\\ncompany"
        )
        group.wait_until_balanced(java, another)
        assert not [event for event in java.events if event.event in ("revoked", "lost") and event.what]
        group.write(40)
        group.wait_until_read()
        group.assert_single_owner()
        assert not group.read_more_than_once(first_by="ours")

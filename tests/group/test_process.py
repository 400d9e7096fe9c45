"""Which senders the process of a member accepts (PD-15)."""

from __future__ import annotations

import pytest

from connectgroup.group.kernel.state import ANY_PROCESS, NO_PROCESS, Process

ALICE = Process(7, "alice")
OPEN = Process(7, "")


@pytest.mark.parametrize(
    ("member", "sender", "accepted"),
    [
        (ALICE, ALICE, True),
        (ALICE, Process(8, "alice"), False),
        (ALICE, Process(-1, "alice"), False),
        (ALICE, Process(7, "bob"), False),
        (ALICE, OPEN, False),
        (OPEN, OPEN, True),
        (OPEN, ALICE, False),
        (Process(-1, "alice"), ALICE, True),
        (Process(-1, "alice"), Process(7, "bob"), False),
        (Process(7, None), ALICE, True),
        (Process(7, None), Process(8, "alice"), False),
        (ALICE, Process(7, None), True),
        (ALICE, Process(8, None), False),
        (ANY_PROCESS, ALICE, True),
        (ANY_PROCESS, NO_PROCESS, True),
    ],
)
def test_member_accepts_its_process_on_connections_of_its_principal(
    member: Process, sender: Process, accepted: bool
) -> None:
    assert member.accepts(sender) == accepted

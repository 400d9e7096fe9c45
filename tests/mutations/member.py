"""What an answer means to a worker: ``member/machine``."""

from __future__ import annotations

from .mutant import Mutant

MACHINE = "connectgroup/member/machine.py"

MEMBER_TESTS = "tests/member/test_machine.py"

MEMBER: tuple[Mutant, ...] = (
    Mutant(
        name="the answer to a heartbeat that was given up counts",
        file=MACHINE,
        old="        if outstanding is None or outstanding.request is not request:\n            return []\n",
        new="        if outstanding is None:\n            return []\n",
        tests=MEMBER_TESTS,
    ),
    Mutant(
        name="the answer of a coordinator that has been replaced counts (D5)",
        file=MACHINE,
        old="        if response.coordinator_epoch < self.coordinator_epoch:\n",
        new="        if response.coordinator_epoch < 0:\n",
        tests=MEMBER_TESTS,
    ),
    Mutant(
        name="a heartbeat that gives up the one before it does not say everything",
        file=MACHINE,
        old="        if self._outstanding is not None:\n            self._full = True\n        self._sequence",
        new="        self._sequence",
        tests=MEMBER_TESTS,
    ),
    Mutant(
        name="after a heartbeat without an answer the next one does not say everything",
        file=MACHINE,
        old="            self._outstanding = None\n            self._full = True\n\n    def report",
        new="            self._outstanding = None\n\n    def report",
        tests=MEMBER_TESTS,
    ),
    Mutant(
        name="the heartbeat after an error does not say everything (KAFKA-16190)",
        file=MACHINE,
        old="        self._full = True\n        error = from_code",
        new="        error = from_code",
        tests=MEMBER_TESTS,
    ),
    Mutant(
        name="owned shrinks when a stop is asked for, not when it is complete",
        file=MACHINE,
        old="            self.revoking |= revoke\n            return [Revoke(units=frozenset(revoke)",
        new=(
            "            self.revoking |= revoke\n"
            "            self.owned = {unit: at for unit, at in self.owned.items() if unit not in revoke}\n"
            "            return [Revoke(units=frozenset(revoke)"
        ),
        tests=MEMBER_TESTS,
    ),
    Mutant(
        name="owned does not grow when a grant is accepted",
        file=MACHINE,
        old="            self.owned[unit] = owner_epoch\n",
        new="",
        tests=MEMBER_TESTS,
    ),
    Mutant(
        name="an order to stop that is repeated is performed twice",
        file=MACHINE,
        old="        revoke = self.owned.keys() - wanted - self.revoking\n",
        new="        revoke = self.owned.keys() - wanted\n",
        tests=MEMBER_TESTS,
    ),
    Mutant(
        name="units are taken on while others are being stopped (S12)",
        file=MACHINE,
        old="        if self.revoking:\n            # While",
        new="        if not self.owned and self.revoking:\n            # While",
        tests=MEMBER_TESTS,
    ),
    Mutant(
        name="what was not taken on while others were being stopped is never asked for again",
        file=MACHINE,
        old="            self._full, self._missed = True, False\n",
        new="            self._missed = False\n",
        tests=f"{MEMBER_TESTS} tests/member/test_two_machines.py",
    ),
    Mutant(
        name="a stop that is complete is not acknowledged",
        file=MACHINE,
        old="        self._acknowledge = True\n        if self._missed:",
        new="        if self._missed:",
        tests=MEMBER_TESTS,
    ),
    Mutant(
        name="an acknowledgement is said over and over (KAFKA-20145)",
        file=MACHINE,
        old="        self._full = self._acknowledge = self._impatient = False\n",
        new="        self._full = self._impatient = False\n",
        tests=MEMBER_TESTS,
    ),
    Mutant(
        name="a grant carries the member's epoch instead of its own",
        file=MACHINE,
        old="owner_epoch = given[unit].owner_epoch if unit in given else self.epoch",
        new="owner_epoch = self.epoch",
        tests=MEMBER_TESTS,
    ),
    Mutant(
        name="an answer without an assignment takes everything away",
        file=MACHINE,
        old="return self._take(response.assignment) if response.assignment is not None else []",
        new="return self._take(response.assignment or MemberAssignment())",
        tests=MEMBER_TESTS,
    ),
    Mutant(
        name="the lease has no margin in which to stop",
        file=MACHINE,
        old="int(self.session_timeout_ms * (1 - self.settings.lease_margin))",
        new="self.session_timeout_ms",
        tests=MEMBER_TESTS,
    ),
    Mutant(
        name="a refusal by a coordinator that cannot serve lengthens the lease",
        file=MACHINE,
        old="        if response.error_code:\n            return self._on_error",
        new=(
            "        if response.error_code:\n"
            "            self._confirm(response, outstanding)\n"
            "            return self._on_error"
        ),
        tests=MEMBER_TESTS,
    ),
    Mutant(
        name="a lease that ends this very moment has not ended",
        file=MACHINE,
        old="        if now_ms < ends_ms and not",
        new="        if now_ms <= ends_ms and not",
        tests=MEMBER_TESTS,
    ),
    Mutant(
        name="the end of the lease is not noticed (KAFKA-9184)",
        file=MACHINE,
        old="        if now_ms < ends_ms and not",
        new="        if now_ms > 0 and not",
        tests=MEMBER_TESTS,
    ),
    Mutant(
        name="a member that was fenced joins again under the epoch it had",
        file=MACHINE,
        old="        self.epoch = JOIN_EPOCH\n        self._confirmed_ms = None\n",
        new="        self._confirmed_ms = None\n",
        tests=MEMBER_TESTS,
    ),
    Mutant(
        name="a member that was fenced joins again before it has stopped everything (KAFKA-16251)",
        file=MACHINE,
        old="        if self.phase in (Phase.LOSING, Phase.GONE):\n            return False\n",
        new="        if self.phase is Phase.GONE:\n            return False\n",
        tests=MEMBER_TESTS,
    ),
    Mutant(
        name="a member of a group that is gone does not let go of what it runs",
        file=MACHINE,
        old="case UnknownMemberId() | FencedMemberEpoch() | GroupIdNotFound():",
        new="case UnknownMemberId() | FencedMemberEpoch():",
        tests=MEMBER_TESTS,
    ),
    Mutant(
        name="a late copy's refusal makes its sender lose everything",
        file=MACHINE,
        old="case UnknownMemberId() | FencedMemberEpoch() | GroupIdNotFound():",
        new="case UnknownMemberId() | FencedMemberEpoch() | GroupIdNotFound() | StaleMemberEpoch():",
        tests=MEMBER_TESTS,
    ),
    Mutant(
        name="a member that is about to leave takes on new units",
        file=MACHINE,
        old="        if not new or self._retiring:\n",
        new="        if not new:\n",
        tests=MEMBER_TESTS,
    ),
    Mutant(
        name="a member that is about to leave and is fenced joins again",
        file=MACHINE,
        old="        return not (self._retiring and self.phase is Phase.JOINING)\n",
        new="        return True\n",
        tests=MEMBER_TESTS,
    ),
    Mutant(
        name="the status of an earlier grant is said",
        file=MACHINE,
        old="        if self.owned.get(unit) == status.owner_epoch:\n            self._statuses[unit]",
        new="        if unit in self.owned:\n            self._statuses[unit]",
        tests=MEMBER_TESTS,
    ),
    Mutant(
        name="a status that changed on the way is not said",
        file=MACHINE,
        old="            if self._statuses.get(unit) == status:\n",
        new="            if unit in self._statuses:\n",
        tests=MEMBER_TESTS,
    ),
    Mutant(
        name="heartbeats are not numbered",
        file=MACHINE,
        old="        self._sequence += 1\n",
        new="",
        tests=MEMBER_TESTS,
    ),
    Mutant(
        name="a worker that is asked to compute forgets that it was heard",
        file=MACHINE,
        old="            case ComputeAssignment():\n                self._confirm(response, outstanding)\n",
        new="            case ComputeAssignment():\n",
        tests=MEMBER_TESTS,
    ),
)

"""KIP-848's case studies and a whole rebalance of Kafka's own tests, stepped through the model alone.

The model judges the product, so it has to be judged as well, and not by the product: it must show, table by table,
what the KIP prints. A partition is a connector without tasks here, ``0`` to ``5`` for foo-0 to foo-5. Where the KIP has
a member wait at epoch 0 for its next heartbeat, its join is its first heartbeat here, as in what Kafka shipped.
"""

from __future__ import annotations

from dataclasses import replace

from connectgroup.errors import ComputeAssignment, FencedMemberEpoch, UnreleasedInstanceId
from connectgroup.protocol.messages.assignment import InstalledMember, InstallRequest, PrepareRequest
from connectgroup.protocol.messages.common import AssignorInfo, grouped
from connectgroup.protocol.messages.connectors import ConnectorChange, UpdateConnectorsRequest
from connectgroup.protocol.messages.heartbeat import HeartbeatRequest
from connectgroup.protocol.units import Unit, Units

from .model import Model
from .words import Answer, Connector, Limits, Member, Share

GROUP = "workers"
ANY = (AssignorInfo(name="any"),)
LIMITS = Limits(
    server_assignor="",
    server_assignors=frozenset(),
    session_timeout_ms=10_000,
    max_rebalance_timeout_ms=3_600_000,
    failures_before_fallback=3,
    max_members=1_000,
    max_units=200_000,
    max_moves=0,
    assignment_interval_ms=0,
    scheduled_delay_ms=0,
    max_delay_ms=3_600_000,
)
WAITS = replace(LIMITS, scheduled_delay_ms=10_000)


def foo(numbers: str) -> Units:
    """``"02"`` is foo-0 and foo-2."""
    return frozenset(map(Unit, numbers))


class Study:
    """One group on paper, and workers that stop what they are told to stop when the study says so."""

    def __init__(self, partitions: str = "", limits: Limits = LIMITS) -> None:
        """These partitions are there from the beginning, and nobody else."""
        self.model = Model(limits)
        self.model.connectors = {number: Connector() for number in partitions}

    @classmethod
    def at_rest(cls, epoch: int, *, limits: Limits = LIMITS, statics: str = "", **members: str) -> Study:
        """Everybody has what it shall have; those in ``statics`` have a name that outlives them, ``i-`` their own."""
        study = cls("".join(members.values()), limits)
        model = study.model
        model.made_ms, model.epoch, model.target_epoch = 1, epoch, epoch
        model.assignor, model.computed_by = "any", min(members)
        for who, numbers in members.items():
            model.target[who] = Share(units=foo(numbers))
            model.members[who] = Member(
                instance=f"i-{who}" if who in statics else None,
                timeout_ms=1_000,
                assignors=ANY,
                epoch=epoch,
                previous=epoch,
                assigned=dict.fromkeys(foo(numbers), epoch),
            )
        return study

    def join(self, who: str, instance: str | None = None) -> Answer:
        return self._ended(
            self.model.heartbeat(
                HeartbeatRequest(
                    group_id=GROUP,
                    member_id=who,
                    member_epoch=0,
                    instance_id=instance,
                    rebalance_timeout_ms=1_000,
                    client_assignors=ANY,
                    owned=(),
                )
            )
        )

    def beat(self, who: str, owned: str | None = None, *, epoch: int | None = None) -> Answer:
        """A heartbeat; ``owned``: what it runs, if that has changed; ``epoch``: if it speaks from another."""
        member = self.model.members[who]
        if member.epoch == 0:
            return self.join(who, member.instance)
        said = HeartbeatRequest(
            group_id=GROUP,
            member_id=who,
            member_epoch=member.epoch if epoch is None else epoch,
            instance_id=member.instance,
            owned=None if owned is None else grouped(foo(owned)),
        )
        return self._ended(self.model.heartbeat(said))

    def compute(self, **shares: str) -> None:
        """Whoever is asked computes this."""
        model = self.model
        assert model.asked is not None
        who = model.asked.who
        epoch = model.members[who].epoch
        prepared = model.prepare(PrepareRequest(group_id=GROUP, member_id=who, member_epoch=epoch))
        assert prepared.question is not None
        assert prepared.question.members.keys() == shares.keys()
        members = tuple(InstalledMember(member_id=each, units=grouped(foo(shares[each]))) for each in shares)
        said = InstallRequest(
            group_id=GROUP, member_id=who, member_epoch=epoch, group_epoch=model.epoch, members=members
        )
        assert self._ended(model.install(said)).code == 0

    def _ended(self, answer: Answer) -> Answer:
        """After each step the promises hold."""
        self.model.rest()
        assert not list(self.model.broken())
        return answer

    @property
    def shows(self) -> str:
        """The three parts of a table of the KIP."""
        model = self.model

        def names(units: object) -> str:
            return "".join(sorted(str(unit) for unit in units))  # type: ignore[attr-defined]

        target = " ".join(f"{who}[{names(model.share(who).units)}]" for who in sorted(model.members))
        members = " ".join(f"{who}@{each.epoch}[{names(each.held)}]" for who, each in sorted(model.members.items()))
        return f"group {model.epoch} | target {model.target_epoch} {target} | {members}"


def test_kip_1_members_join_one_after_the_other() -> None:
    """ "Basic": foo has 3 partitions, A, B and C join."""
    study = Study("012")
    study.join("A")
    assert study.shows == "group 1 | target 0 A[] | A@0[]"
    study.compute(A="012")
    assert study.shows == "group 1 | target 1 A[012] | A@0[]"
    study.beat("A")
    assert study.shows == "group 1 | target 1 A[012] | A@1[012]"

    study.join("B")
    assert study.shows == "group 2 | target 1 A[012] B[] | A@1[012] B@1[]"
    study.compute(A="01", B="2")
    assert study.shows == "group 2 | target 2 A[01] B[2] | A@1[012] B@1[]"
    study.beat("B")
    assert study.shows == "group 2 | target 2 A[01] B[2] | A@1[012] B@2[]", "2 is not revoked yet"
    study.beat("A")
    assert study.shows == "group 2 | target 2 A[01] B[2] | A@1[012] B@2[]", "told to revoke 2, and has not yet"
    study.beat("A", owned="01")
    assert study.shows == "group 2 | target 2 A[01] B[2] | A@2[01] B@2[]"
    study.beat("B")
    assert study.shows == "group 2 | target 2 A[01] B[2] | A@2[01] B@2[2]"

    study.join("C")
    assert study.shows == "group 3 | target 2 A[01] B[2] C[] | A@2[01] B@2[2] C@2[]"
    study.compute(A="0", B="2", C="1")
    assert study.shows == "group 3 | target 3 A[0] B[2] C[1] | A@2[01] B@2[2] C@2[]"
    study.beat("B")
    assert study.shows == "group 3 | target 3 A[0] B[2] C[1] | A@2[01] B@3[2] C@2[]"
    study.beat("C")
    assert study.shows == "group 3 | target 3 A[0] B[2] C[1] | A@2[01] B@3[2] C@3[]", "1 is not revoked yet"
    study.beat("A")
    study.beat("C")
    assert study.shows == "group 3 | target 3 A[0] B[2] C[1] | A@2[01] B@3[2] C@3[]"
    study.beat("A", owned="0")
    assert study.shows == "group 3 | target 3 A[0] B[2] C[1] | A@3[0] B@3[2] C@3[]"
    study.beat("C")
    assert study.shows == "group 3 | target 3 A[0] B[2] C[1] | A@3[0] B@3[2] C@3[1]"


def test_kip_2_incremental_revocation_and_assignment() -> None:
    """ "C heartbeats, the group coordinator gives him foo-2 which is now free but hold foo-5." """
    study = Study.at_rest(21, A="012", B="345")
    study.join("C")
    assert study.shows == "group 22 | target 21 A[012] B[345] C[] | A@21[012] B@21[345] C@21[]"
    study.compute(A="01", B="34", C="25")
    study.beat("C")
    assert study.shows == "group 22 | target 22 A[01] B[34] C[25] | A@21[012] B@21[345] C@22[]"
    study.beat("A")
    study.beat("B")
    study.beat("C")
    assert study.shows == "group 22 | target 22 A[01] B[34] C[25] | A@21[012] B@21[345] C@22[]"
    study.beat("A", owned="01")
    assert study.shows == "group 22 | target 22 A[01] B[34] C[25] | A@22[01] B@21[345] C@22[]"
    study.beat("C")
    assert study.shows == "group 22 | target 22 A[01] B[34] C[25] | A@22[01] B@21[345] C@22[2]"
    study.beat("B", owned="34")
    study.beat("C")
    assert study.shows == "group 22 | target 22 A[01] B[34] C[25] | A@22[01] B@22[34] C@22[25]"


def test_kip_3_a_member_fails() -> None:
    """ "A fails to heartbeat. The group coordinator removes him after the session timeout expires." """
    study = Study.at_rest(22, A="01", B="34", C="25")
    study.model.expire_session("A")
    assert study.shows == "group 23 | target 22 B[34] C[25] | B@22[34] C@22[25]"
    study.compute(B="340", C="251")
    assert study.shows == "group 23 | target 23 B[034] C[125] | B@22[34] C@22[25]"
    study.beat("B")
    study.beat("C")
    assert study.shows == "group 23 | target 23 B[034] C[125] | B@23[034] C@23[125]"


def test_kip_4_a_partition_is_added() -> None:
    """ "A new partition foo-1 is created." """
    study = Study.at_rest(22, A="0", B="")
    change = ConnectorChange(connector="1", config=())
    assert study.model.update_connectors(UpdateConnectorsRequest(group_id=GROUP, changes=(change,))).code == 0
    assert study.shows == "group 23 | target 22 A[0] B[] | A@22[0] B@22[]"
    study.compute(A="0", B="1")
    assert study.shows == "group 23 | target 23 A[0] B[1] | A@22[0] B@22[]"
    study.beat("A")
    study.beat("B")
    assert study.shows == "group 23 | target 23 A[0] B[1] | A@23[0] B@23[1]"


def test_who_is_asked_is_told_so_until_it_comes() -> None:
    """CN-03: the order to compute is an answer to its heartbeat; the others go on."""
    study = Study.at_rest(22, A="0", B="1")
    study.join("C")
    for _ in range(2):
        assert study.beat("A").code == ComputeAssignment.code
    assert study.beat("B").code == 0
    study.compute(A="0", B="1", C="")
    assert study.beat("A").code == 0
    assert study.shows == "group 23 | target 23 A[0] B[1] C[] | A@23[0] B@22[1] C@22[]"


def test_a_whole_rebalance_heartbeat_by_heartbeat() -> None:
    """RE-01 to RE-10: ``0`` to ``5`` for foo, ``6`` to ``8`` for bar."""
    study = Study.at_rest(10, A="01267", B="3458")
    study.join("C")
    study.compute(A="016", B="238", C="457")
    assert study.beat("C", "").epoch == 11
    told = study.beat("A")
    assert (told.epoch, told.units) == (10, dict.fromkeys(foo("016"), 10))
    told = study.beat("B")
    assert (told.epoch, told.units) == (10, dict.fromkeys(foo("38"), 10))
    assert study.beat("C") == Answer(epoch=11, share=Share(units=foo("457")))
    assert study.beat("A", "016").epoch == 11
    assert study.beat("B") == Answer(epoch=10, share=Share(units=foo("238")))
    told = study.beat("C")
    assert (told.epoch, told.units) == (11, {Unit("7"): 11})
    assert study.beat("C").units is None
    told = study.beat("B", "38")
    assert (told.epoch, told.units) == (11, {Unit("2"): 11, Unit("3"): 10, Unit("8"): 10})
    told = study.beat("C", "7")
    assert (told.epoch, told.units) == (11, dict.fromkeys(foo("457"), 11))
    assert study.model.state() == "Stable"


def test_a_member_speaks_from_its_epoch_or_where_an_answer_was_lost_from_the_one_before() -> None:
    """HB-01 to HB-04."""

    def lost() -> Study:
        """A has moved from 22 to 23, and has not heard of it."""
        study = Study.at_rest(22, A="01", B="")
        study.join("C")
        study.compute(A="01", B="", C="")
        study.beat("A")
        return study

    for epoch, owned in ((200, "01"), (21, "01"), (22, None), (22, "015")):
        study = lost()
        assert study.beat("A", owned, epoch=epoch).code == FencedMemberEpoch.code, (epoch, owned)
        assert "A" not in study.model.members
    assert lost().beat("A", "0", epoch=22).epoch == 23


def test_a_static_member_is_bounced_and_nothing_moves() -> None:
    """ST-01, ST-02, ST-04, CN-12: no epoch changes, nobody computes."""
    study = Study.at_rest(22, A="0", B="1", statics="B")
    assert study.join("C", "i-B").code == UnreleasedInstanceId.code
    assert study.beat("B", epoch=-2).epoch == -2
    assert study.shows == "group 22 | target 22 A[0] B[1] | A@22[0] B@-2[1]"
    assert study.join("C", "i-B").units == {Unit("1"): 22}
    assert study.shows == "group 22 | target 22 A[0] C[1] | A@22[0] C@22[1]"


def test_the_work_of_a_lost_worker_waits_for_it_and_is_given_back() -> None:
    """S15, L8: while it is away nobody has it; then it has it again, without an assignor, under a later epoch."""
    study = Study.at_rest(22, limits=WAITS, A="0", B="1")
    study.model.expire_session("B")
    study.compute(A="0")
    assert study.shows == "group 23 | target 23 A[0] | A@22[0]"
    study.beat("A")
    assert study.join("B").units == {Unit("1"): 24}
    assert study.shows == "group 24 | target 24 A[0] B[1] | A@23[0] B@24[1]"


def test_the_work_of_a_lost_worker_that_does_not_come_back_is_given_on() -> None:
    """S15: once, when its time is over."""
    study = Study.at_rest(22, limits=WAITS, A="0", B="1")
    study.model.expire_session("B")
    study.compute(A="0")
    study.model.expire_delay("B")
    assert study.model.epoch == 24
    study.compute(A="01")
    study.beat("A")
    assert study.shows == "group 24 | target 24 A[01] | A@24[01]"


def test_moves_are_made_in_rounds() -> None:
    """``max_moves``: the rest of them when everybody has what it was given first."""
    study = Study.at_rest(22, limits=replace(LIMITS, max_moves=1), A="012", B="")
    study.model.update_connectors(
        UpdateConnectorsRequest(group_id=GROUP, changes=(ConnectorChange(connector="3", config=()),))
    )
    study.compute(A="2", B="013")
    assert study.shows == "group 23 | target 23 A[12] B[03] | A@22[012] B@22[]"
    study.beat("A")
    study.beat("A", "12")
    assert study.model.epoch == 23
    study.beat("B")
    assert study.model.epoch == 24, "all have arrived: the assignor is asked again"

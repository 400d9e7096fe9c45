"""The invariants, by their ids in the list of reliability. Each class is one invariant: it checks what an event has
changed, right after the event.

| id | class, or where it is checked instead |
|---|---|
| S1 one owner | ``OneOwner`` |
| S2 no unit runs twice | ``NoUnitRunsTwice`` |
| S3 revoked before reassigned | ``RevokedBeforeReassigned`` |
| S4 group epochs | ``GroupEpochs`` |
| S5 member epochs | ``MemberEpochs`` |
| S6 a token is issued once | ``TokenIssuedOnce`` |
| S7 valid member epoch | ``ValidMemberEpoch`` |
| S8 stable means stable | ``StableMeansStable`` |
| S9 valid target | ``ValidTarget`` |
| S10 only runnable units | ``OnlyRunnableUnits``, ``RevokedAtOnce`` |
| S11 no skipped revocation | ``NoSkippedRevocation`` |
| S12 callbacks do not overlap | ``CallbacksDoNotOverlap`` |
| S13 computing member installs | ``OnlyComputingMemberInstalls``, ``InstallIsNotFenced``, ``RulesDoNotFail`` |
| S14 expired in time, not before | ``RemovedInTime``, ``TimersRunTheirTime`` |
| S15 delayed units | ``DelayedUnits`` |
| S16 requests are idempotent | ``RequestsAreIdempotent`` |
| S17 full responses | ``FullResponses`` |
| S18 deterministic assignors | ``EqualInputEqualResult``, ``test_seed_is_deterministic_across_processes`` |
| S19 balanced with minimal moves | ``MinimalMoves`` |
| D1 write before reply | ``WriteBeforeReply`` |
| D2 replay | ``ServedIsDurable``, ``ReplayGivesTheGroup`` |
| D3 all or nothing | ``AllOrNothing``; torn files: ``tests/log/test_sqlite_damage.py`` |
| D4 one writer | ``OneWriter`` |
| D5 reads are fenced | ``FormerCoordinatorsAreIgnored``, ``RemovedInTime`` (timers are re-armed) |
| D6 outcome unknown | fault "append in doubt" under ``ServedIsDurable`` and ``WriteBeforeReply`` |
| D7 damaged records | ``tests/log/test_sqlite_damage.py``, ``tests/coordinator/test_serving.py`` |
| D8 rules do not fail | ``RulesDoNotFail``; rollback: ``tests/coordinator/test_durability.py`` |
| D9 bounded batches | fault "batch refused"; bounds: ``connectgroup/testing/contracts/log.py`` |
| D10 reads show writes | ``ReadsShowWrites`` |
| X1 no zombie writes | ``NoZombieWrites`` |
| X2 each batch once | ``EveryRowOnce`` |
| X3 positions never fall | ``EveryRowOnce`` |
| X4 readers see whole batches | ``tests/spark`` (a real sink; here a commit is one step) |
| X5 fence first | ``FenceFirst`` |
| X6 stopped before on_revoked | ``StoppedBeforeOnRevoked`` |
| X7 one checkpoint | ``tests/spark`` (checkpoints are deleted with the grant) |
| X8 no row is lost | ``NoRowIsLost`` |
| PD-16 starting units are not moved | ``StartingUnitsStay`` |
| PD-10 a lease ends units that are not fenced | ``FencedUnitsRunOn`` |
| L1 converges | ``GroupConverges``; without faults: ``FaultSchedule.smoke_phase`` |
| L2 no storm, no spin | ``NoRebalanceStorm``, ``NoBusySpin`` |
| L3 tasks of dead workers run elsewhere | ``GroupConverges`` (every task runs on its owner), ``RemovedInTime`` |
| L4 a fenced member rejoins | ``FencedMemberRejoins`` |
| L5 a stale target is computed | ``StaleTargetIsComputed`` |
| L6 the coordinator recovers | ``CoordinatorRecovers`` |
| L7 every request gets a response | ``EveryRequestGetsAResponse``, ``StopEnds`` |
| L8 return to delayed units | ``ReturnToDelayedUnits`` |
"""

from __future__ import annotations

from .assignors import EqualInputEqualResult, MinimalMoves
from .base import Invariant, Violation
from .delays import DelayedUnits, ReturnToDelayedUnits, StartingUnitsStay
from .epochs import (
    GroupEpochs,
    InstallIsNotFenced,
    MemberEpochs,
    OnlyComputingMemberInstalls,
    RemovedInTime,
    StableMeansStable,
    ValidMemberEpoch,
)
from .exactly_once import EveryRowOnce, FenceFirst, NoRowIsLost, NoZombieWrites
from .liveness import (
    CoordinatorRecovers,
    EveryRequestGetsAResponse,
    FencedMemberRejoins,
    GroupConverges,
    NoBusySpin,
    NoRebalanceStorm,
    StaleTargetIsComputed,
)
from .log import AllOrNothing, OneWriter, ReplayGivesTheGroup, ServedIsDurable
from .ownership import (
    NoUnitRunsTwice,
    OneOwner,
    OnlyRunnableUnits,
    RevokedBeforeReassigned,
    TokenIssuedOnce,
    ValidTarget,
)
from .responses import (
    FormerCoordinatorsAreIgnored,
    FullResponses,
    ReadsShowWrites,
    RequestsAreIdempotent,
    RulesDoNotFail,
    WriteBeforeReply,
)
from .stopping import RevokedAtOnce
from .timers import TimersRunTheirTime
from .watch import Watch, slot_of
from .workers import CallbacksDoNotOverlap, FencedUnitsRunOn, NoSkippedRevocation, StopEnds, StoppedBeforeOnRevoked

ALL: tuple[type[Invariant], ...] = (
    OneOwner,
    NoUnitRunsTwice,
    RevokedBeforeReassigned,
    GroupEpochs,
    MemberEpochs,
    TokenIssuedOnce,
    RevokedAtOnce,
    ValidMemberEpoch,
    StableMeansStable,
    ValidTarget,
    OnlyRunnableUnits,
    NoSkippedRevocation,
    CallbacksDoNotOverlap,
    OnlyComputingMemberInstalls,
    InstallIsNotFenced,
    RemovedInTime,
    TimersRunTheirTime,
    DelayedUnits,
    ReturnToDelayedUnits,
    StartingUnitsStay,
    RequestsAreIdempotent,
    FullResponses,
    EqualInputEqualResult,
    MinimalMoves,
    WriteBeforeReply,
    ServedIsDurable,
    ReplayGivesTheGroup,
    AllOrNothing,
    OneWriter,
    FormerCoordinatorsAreIgnored,
    RulesDoNotFail,
    ReadsShowWrites,
    NoZombieWrites,
    EveryRowOnce,
    FenceFirst,
    FencedUnitsRunOn,
    StoppedBeforeOnRevoked,
    NoRowIsLost,
    GroupConverges,
    NoRebalanceStorm,
    NoBusySpin,
    FencedMemberRejoins,
    StaleTargetIsComputed,
    CoordinatorRecovers,
    EveryRequestGetsAResponse,
    StopEnds,
)

__all__ = ["ALL", "GroupConverges", "Invariant", "NoRebalanceStorm", "Violation", "Watch", "slot_of"]

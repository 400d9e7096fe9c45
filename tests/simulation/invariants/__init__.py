"""What must hold, by the names that the list of reliability gives it; each class is one promise, and looks at what an
event has changed, right after the event.

| id | class, or where else it is checked |
|---|---|
| S1 one owner | ``OneOwner`` |
| S2 nobody runs twice | ``NobodyRunsTwice`` |
| S3 freed first | ``FreedFirst`` |
| S4 group epochs | ``GroupEpochs`` |
| S5 member epochs | ``MemberEpochs`` |
| S6 a token is given once | ``TokenGivenOnce`` |
| S7 valid member epoch | ``ValidMemberEpoch`` |
| S8 stable means stable | ``StableMeansStable`` |
| S9 legal target | ``LegalTarget`` |
| S10 only what shall run | ``OnlyWhatShallRun``, ``RevokedAtOnce`` |
| S11 no skipped revocation | ``NoSkippedRevocation`` |
| S12 callbacks do not overlap | ``CallbacksDoNotOverlap`` |
| S13 only the chosen installs | ``OnlyTheChosenInstalls``, ``HonestInstallIsNotFenced``, ``RulesDoNotFail`` |
| S14 removed in time, not before | ``RemovedInTime``, ``TimersRunTheirTime`` |
| S15 held back | ``DelayedUnits`` |
| S16 twice is once | ``TwiceIsOnce`` |
| S17 full answers | ``FullAnswers`` |
| S18 equal answers | ``EqualQuestionsEqualAnswers``; two processes: ``test_seed_is_the_same_run_in_two_processes`` |
| S19 few moves, even | ``NoMoreMovesThanNeeded`` |
| D1 write before reply | ``WriteBeforeReply`` |
| D2 replay | ``ServedIsDurable``, ``ReplayGivesTheGroup`` |
| D3 all or nothing | ``AllOrNothing``; torn files: ``tests/log/test_sqlite.py`` |
| D4 one writer | ``OneWriter`` |
| D5 reads are fenced | ``FormerCoordinatorsAreNotHeard``, ``RemovedInTime`` (timers start anew) |
| D6 outcome unknown | fault "append in doubt" under ``ServedIsDurable`` and ``WriteBeforeReply`` |
| D7 records not to be trusted | ``tests/log/test_sqlite.py``, ``tests/coordinator/test_serving.py`` |
| D8 rules do not fail | ``RulesDoNotFail``; rollback: ``tests/coordinator/test_durability.py`` |
| D9 bounded batches | fault "batch refused"; bounds: ``connectgroup/testing/contracts/log.py`` |
| D10 reads show writes | ``ReadsShowWrites`` |
| X1 no zombie writes | ``NoZombieWrites`` |
| X2 each batch once | ``EveryRowOnce`` |
| X3 positions never fall | ``EveryRowOnce`` |
| X4 readers see whole batches | ``tests/spark`` (a real sink; here a commit is one step) |
| X5 fence first | ``FenceFirst`` |
| X6 stopped before told | ``StoppedBeforeTold`` |
| X7 one checkpoint | ``tests/spark`` (checkpoints are thrown away with the grant) |
| X8 nothing is lost | ``NothingIsLost`` |
| L1 comes to rest | ``ComesToRest``; without faults: ``Storm.drill`` |
| L2 no storm, no spin | ``NoRebalanceStorm``, ``NoBusySpin`` |
| L3 the dead's tasks run elsewhere | ``ComesToRest`` (every task runs on its holder), ``RemovedInTime`` |
| L4 a fenced worker comes back | ``FencedComesBack`` |
| L5 somebody computes | ``SomebodyComputes`` |
| L6 serves again soon | ``ServesAgainSoon`` |
| L7 everything is answered | ``EveryRequestIsAnswered``, ``StopEnds`` |
| L8 back to its work | ``BackToItsWork`` |
"""

from __future__ import annotations

from .answers import (
    FormerCoordinatorsAreNotHeard,
    FullAnswers,
    ReadsShowWrites,
    RulesDoNotFail,
    TwiceIsOnce,
    WriteBeforeReply,
)
from .assignors import EqualQuestionsEqualAnswers, NoMoreMovesThanNeeded
from .base import Invariant, Violation
from .delays import BackToItsWork, DelayedUnits
from .epochs import (
    GroupEpochs,
    HonestInstallIsNotFenced,
    MemberEpochs,
    OnlyTheChosenInstalls,
    RemovedInTime,
    StableMeansStable,
    ValidMemberEpoch,
)
from .exactly_once import EveryRowOnce, FenceFirst, NothingIsLost, NoZombieWrites
from .liveness import (
    ComesToRest,
    EveryRequestIsAnswered,
    FencedComesBack,
    NoBusySpin,
    NoRebalanceStorm,
    ServesAgainSoon,
    SomebodyComputes,
)
from .log import AllOrNothing, OneWriter, ReplayGivesTheGroup, ServedIsDurable
from .ownership import FreedFirst, LegalTarget, NobodyRunsTwice, OneOwner, OnlyWhatShallRun, TokenGivenOnce
from .stopping import RevokedAtOnce
from .timers import TimersRunTheirTime
from .watch import Watch, place_of
from .workers import CallbacksDoNotOverlap, NoSkippedRevocation, StopEnds, StoppedBeforeTold

ALL: tuple[type[Invariant], ...] = (
    OneOwner,
    NobodyRunsTwice,
    FreedFirst,
    GroupEpochs,
    MemberEpochs,
    TokenGivenOnce,
    RevokedAtOnce,
    ValidMemberEpoch,
    StableMeansStable,
    LegalTarget,
    OnlyWhatShallRun,
    NoSkippedRevocation,
    CallbacksDoNotOverlap,
    OnlyTheChosenInstalls,
    HonestInstallIsNotFenced,
    RemovedInTime,
    TimersRunTheirTime,
    DelayedUnits,
    BackToItsWork,
    TwiceIsOnce,
    FullAnswers,
    EqualQuestionsEqualAnswers,
    NoMoreMovesThanNeeded,
    WriteBeforeReply,
    ServedIsDurable,
    ReplayGivesTheGroup,
    AllOrNothing,
    OneWriter,
    FormerCoordinatorsAreNotHeard,
    RulesDoNotFail,
    ReadsShowWrites,
    NoZombieWrites,
    EveryRowOnce,
    FenceFirst,
    StoppedBeforeTold,
    NothingIsLost,
    ComesToRest,
    NoRebalanceStorm,
    NoBusySpin,
    FencedComesBack,
    SomebodyComputes,
    ServesAgainSoon,
    EveryRequestIsAnswered,
    StopEnds,
)

__all__ = ["ALL", "ComesToRest", "Invariant", "NoRebalanceStorm", "Violation", "Watch", "place_of"]

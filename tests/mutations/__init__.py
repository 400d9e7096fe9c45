"""The product broken in many small ways, each of which the suite must notice: run by ``tests/mutants.py``.

One file a part of the product. A breakage here is one that somebody could make: an inequality, a forgotten case, two
lines in the other order. What nobody outside could ever notice is no breakage and does not belong here.
"""

from __future__ import annotations

from .assigning import ASSIGNING
from .consumer import CONSUMER
from .coordinator import COORDINATOR
from .ending import ENDING
from .heartbeats import HEARTBEATS
from .leaving import LEAVING
from .log import LOG
from .member import MEMBER
from .mutant import Mutant
from .sink import SINK
from .state import STATE
from .steps import STEPS
from .transport import TRANSPORT
from .wire import WIRE
from .worker import WORKER

ALL: tuple[Mutant, ...] = (
    *STEPS,
    *HEARTBEATS,
    *ASSIGNING,
    *STATE,
    *LEAVING,
    *ENDING,
    *COORDINATOR,
    *MEMBER,
    *WORKER,
    *LOG,
    *WIRE,
    *TRANSPORT,
    *SINK,
    *CONSUMER,
)

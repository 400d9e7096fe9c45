"""All planted faults, in one list: the tests, the simulator and the model must detect those that name them."""

from __future__ import annotations

from ..fault import Fault
from .assigning import ASSIGNING
from .classic import CLASSIC
from .consumer import CONSUMER
from .consumer_groups import CONSUMER_GROUPS
from .coordinator import COORDINATOR
from .group import GROUP
from .storage import STORAGE
from .worker import WORKER

FAULTS: tuple[Fault, ...] = (*GROUP, *ASSIGNING, *COORDINATOR, *WORKER, *STORAGE, *CONSUMER, *CLASSIC, *CONSUMER_GROUPS)


def named(name: str) -> Fault:
    """The fault whose name begins with these words."""
    (found,) = (fault for fault in FAULTS if fault.name.startswith(name))
    return found

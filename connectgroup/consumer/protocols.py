"""The parts of a consumer that depend on its group protocol."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from ..assign.api import PartitionAssignor
from .callbacks import loaded
from .classic import ClassicMembership
from .client import GroupClient
from .epoch_work import EpochWork
from .epochs import EpochMembership
from .membership import Membership
from .ownership import Ownership
from .settings import ConsumerSettings
from .work import ClassicWork, GroupWork

CLASSIC_ASSIGNORS = ("range", "cooperative-sticky")


def protocol_of(
    settings: ConsumerSettings, client: GroupClient, assignors: Sequence[PartitionAssignor | str] | None
) -> tuple[Membership, Callable[[Ownership], GroupWork]]:
    """Return the membership of a consumer, and a function that creates its group work.

    Args:
        assignors: null for the default of the protocol.

    Raises:
        ConfigError, PluginError: an assignor cannot be used.
    """
    if settings.group_protocol == "classic":
        ours = loaded(CLASSIC_ASSIGNORS if assignors is None else assignors)
        classic = ClassicMembership(client, settings, ours)
        return classic, partial(ClassicWork, settings, ours, classic)
    epochs = EpochMembership(client, settings, loaded(assignors) if assignors is not None else ())
    return epochs, partial(EpochWork, settings, epochs)

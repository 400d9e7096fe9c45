"""The parts of a consumer that depend on its group protocol."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from ..assign.api import PartitionAssignor
from .callbacks import loaded
from .classic import ClassicMembership
from .client import GroupClient
from .epochs import EpochMembership
from .membership import Membership
from .ownership import PartitionOwnership
from .security import broker_security, coordinator_of
from .settings import GroupConsumerSettings
from .work import ClassicWork, EpochWork, GroupWork

CLASSIC_ASSIGNORS = ("range", "cooperative-sticky")


def client_of(settings: GroupConsumerSettings) -> GroupClient:
    """Return a consumer's access to its cluster.

    Raises:
        ConfigError: a file that the settings name cannot be used.
    """
    coordinator = coordinator_of(settings.coordinator, settings.fetch) if settings.coordinator is not None else None
    return GroupClient(
        settings.bootstrap,
        settings.group,
        settings.client_id,
        coordinator=coordinator,
        security=broker_security(settings.fetch),
    )


def protocol_of(
    settings: GroupConsumerSettings, client: GroupClient, assignors: Sequence[PartitionAssignor | str] | None
) -> tuple[Membership, Callable[[PartitionOwnership], GroupWork]]:
    """Return the membership of a consumer, and a function that creates its group work.

    Args:
        assignors: ``None`` for the default of the protocol.

    Raises:
        ConfigError, PluginError: an assignor cannot be used.
    """
    if settings.group_protocol == "classic":
        ours = loaded(CLASSIC_ASSIGNORS if assignors is None else assignors, settings.rack)
        classic = ClassicMembership(client, settings, ours)
        return classic, partial(ClassicWork, settings, ours, classic)
    epochs = EpochMembership(client, settings, loaded(assignors, settings.rack) if assignors is not None else ())
    return epochs, partial(EpochWork, settings, epochs)

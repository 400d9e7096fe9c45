"""Log one message per change of assignment, under the logger ``connectgroup.units``."""

from __future__ import annotations

import logging

from connectgroup.listener import WorkerRebalanceListener
from connectgroup.protocol.units import Units, show

_log = logging.getLogger("connectgroup.units")


class LoggingListener(WorkerRebalanceListener):
    """Logs the units that the worker is assigned (INFO), revokes (INFO) and loses (WARNING)."""

    def on_assigned(self, units: Units, epoch: int) -> None:
        """``epoch 4: assigned 2 units: a, a-0``"""
        _log.info("epoch %d: assigned %s", epoch, _told(units))

    def on_revoked(self, units: Units, epoch: int) -> None:
        """``epoch 4: revoked 1 unit: a-0``"""
        _log.info("epoch %d: revoked %s", epoch, _told(units))

    def on_lost(self, units: Units, epoch: int) -> None:
        """``epoch 4: lost 1 unit: a-0``"""
        _log.warning("epoch %d: lost %s", epoch, _told(units))


def _told(units: Units) -> str:
    return f"{len(units)} unit{'' if len(units) == 1 else 's'}: {show(units)}"

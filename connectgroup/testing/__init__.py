"""For authors of plug-ins and embedders: the pytest plug-in, the contract classes, groups in virtual time.

Public names are loaded on first use: pytest imports this package in every run of an environment that has it.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .contracts.assignor import AssignorContract as AssignorContract
    from .contracts.connector import ConnectorContract as ConnectorContract
    from .contracts.listener import ListenerContract as ListenerContract
    from .contracts.log import LogContract as LogContract
    from .contracts.sink import SinkContract as SinkContract
    from .contracts.source import SourceContract as SourceContract
    from .contracts.transport import TransportContract as TransportContract
    from .history import History as History, Run as Run
    from .pytest_plugin import StartGroup as StartGroup, seeds as seeds
    from .spans import SpanNode as SpanNode, Spans as Spans
    from .virtual_time import Gate as Gate, VirtualLoop as VirtualLoop
    from .worker_group import WorkerGroup as WorkerGroup

_HOME = {
    "contracts.assignor": ("AssignorContract",),
    "contracts.connector": ("ConnectorContract",),
    "contracts.listener": ("ListenerContract",),
    "contracts.log": ("LogContract",),
    "contracts.sink": ("SinkContract",),
    "contracts.source": ("SourceContract",),
    "contracts.transport": ("TransportContract",),
    "history": ("History", "Run"),
    "pytest_plugin": ("StartGroup", "seeds"),
    "spans": ("SpanNode", "Spans"),
    "virtual_time": ("Gate", "VirtualLoop"),
    "worker_group": ("WorkerGroup",),
}
_MODULE_OF = {name: module for module, names in _HOME.items() for name in names}

__all__ = sorted(_MODULE_OF)


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_MODULE_OF[name]}", __name__), name)


def __dir__() -> list[str]:
    return list(__all__)

"""The names of ``import connectgroup``."""

from __future__ import annotations

import pytest

import connectgroup
import connectgroup.testing


def test_what_an_embedder_needs_is_public() -> None:
    """Requests and their errors, the admin client, and the types in the signatures of assignors and listeners."""
    assert set(connectgroup.__all__) >= {
        *("Admin", "ConnectorChange", "DescribeRequest", "UpdateConnectorsRequest", "TargetState"),
        *("ConfigError", "ConnectGroupError", "GroupError", "PluginError"),
        *("Unit", "Units", "WorkerTraits", "load_assignor", "load_listener"),
        *("TaskStatus", "UnitState", "fencing_token"),  # what a runner needs
        *("serve_worker", "StopReason", "WorkerState"),
        *("ConsumerGroups", "StaticTopics", "ConsumerSettings"),  # a coordinator of consumer groups
    }


@pytest.mark.parametrize("name", connectgroup.__all__)
def test_every_public_name_can_be_imported(name: str) -> None:
    assert getattr(connectgroup, name) is not None


@pytest.mark.parametrize("name", connectgroup.testing.__all__)
def test_every_public_name_for_tests_can_be_imported(name: str) -> None:
    assert getattr(connectgroup.testing, name) is not None

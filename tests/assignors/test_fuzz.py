"""Any input bytes lead to a result or to an error that the worker handles."""

from __future__ import annotations

import random

from connectgroup import wire
from connectgroup.assign.convert import group_from_prepare, members_for_install
from connectgroup.assign.sandbox import run_assignor
from connectgroup.assignors.balanced import BalancedAssignor
from connectgroup.errors import PluginError, WireError
from connectgroup.protocol.messages.assignment import (
    AssignorMetadata,
    DelayedUnits,
    InstallRequest,
    PreparedConnector,
    PreparedMember,
    PrepareResponse,
)
from connectgroup.protocol.messages.common import ConnectorTasks
from tests.fuzzing import INPUTS, SEED, mutated, one_line

MAX_TASKS = 10_000
"""Largest number of tasks: more would only take time."""


def input_group(generator: random.Random) -> bytes:
    connectors = tuple(
        PreparedConnector(
            connector=name,
            num_tasks=generator.randrange(5),
            weight=generator.randrange(3),
            task_weights=(1, 9)[: generator.randrange(3)],
        )
        for name in "abc"[: generator.randrange(4)]
    )
    waiting = tuple(
        ConnectorTasks(connector=name, owns_connector=name == "a", tasks=(generator.randrange(5),)) for name in "ab"
    )
    members = tuple(
        PreparedMember(
            member_id=name,
            member_epoch=3,
            instance_id=generator.choice([None, name]),
            assignor=AssignorMetadata(version=0, metadata=generator.randbytes(generator.randrange(9))),
            unit_indices=tuple(sorted(generator.sample(range(9), generator.randrange(5)))),
        )
        for name in "abc"
    )
    delayed = tuple(DelayedUnits(member_id=name, left_ms=5, units=waiting) for name in "d"[: generator.randrange(2)])
    return wire.encode_response(
        PrepareResponse(
            group_epoch=4, assignor_name="balanced", members=members, connectors=connectors, delayed=delayed
        ),
        api_key=20481,
        version=0,
        correlation_id=1,
    )


def test_any_question_has_an_answer_or_a_plugin_error() -> None:
    rng = random.Random(SEED)
    valid = [input_group(rng) for _ in range(20)]
    succeeded = refused = 0
    for number in range(INPUTS // 4):
        data = mutated(valid[number % len(valid)], valid, rng)
        try:
            _, response = wire.decode_response(data, api_key=20481, version=0)
        except WireError:
            continue
        assert isinstance(response, PrepareResponse)
        if sum(abs(connector.num_tasks) for connector in response.connectors) > MAX_TASKS:
            continue
        try:
            result = run_assignor(BalancedAssignor(), group_from_prepare(response))
            install = InstallRequest(
                group_id="g",
                member_id="a",
                member_epoch=3,
                group_epoch=response.group_epoch,
                members=members_for_install(result),
            )
            wire.encode_request(install, version=0, correlation_id=1, client_id=None)
            succeeded += 1
        except PluginError as error:
            refused += 1
            one_line(error)
        except BaseException as error:
            raise AssertionError(f"FUZZ_SEED={SEED}: {data.hex()} ended in {error!r}") from error
    assert succeeded > refused

"""Errors of a test's plug-ins: the story of the group names class, file and line, and what follows."""

from __future__ import annotations

import re
import time

import pytest

from connectgroup import ConnectAssignment, ConnectAssignor, ConnectAssignorInput
from connectgroup.connector import Config, Task, TaskContext
from connectgroup.listener import WorkerRebalanceListener
from connectgroup.protocol.units import Units
from connectgroup.testing import StartGroup

from .test_worker_group import Echo, EchoTask

HERE = rf"\(at {re.escape(__file__)}:\d+\)$"


class Raising(WorkerRebalanceListener):
    """Does not allow a revocation."""

    def on_revoked(self, units: Units, epoch: int) -> None:
        raise ValueError("not flushed")


class RaisingLater(WorkerRebalanceListener):
    """Does not allow a revocation; asynchronous."""

    async def on_revoked(self, units: Units, epoch: int) -> None:
        raise ValueError("not flushed")


class Stuck(Echo):
    """Its tasks cannot be stopped."""

    def task(self, config: Config, context: TaskContext) -> Task:
        return StuckTask()


class StuckTask(EchoTask):
    def stop(self) -> None:
        raise OSError("stuck")


@pytest.mark.parametrize("listener", [Raising, RaisingLater])
def test_story_names_class_and_line_of_a_listener_that_raises(
    worker_group: StartGroup, listener: type[WorkerRebalanceListener]
) -> None:
    group = worker_group(["a"], connectors={"c": 1}, listeners=[listener])
    group.wait_until_stable()
    group.stop("a")
    raised = rf"s  a: listener {listener.__name__}: on_revoked of c, c-0 raised ValueError: not flushed {HERE}"
    assert re.search(raised, group.story(), re.MULTILINE), group.story()


def test_stop_that_raises_delays_a_revocation_but_not_the_leave_of_its_worker(worker_group: StartGroup) -> None:
    """KAFKA-16639: a leave is always attempted. Story and log name the line of the task's stop."""
    group = worker_group(["a"], connectors={"c": {"connector.class": Stuck, "tasks.max": 2}})
    group.wait_until_stable()
    group.add_worker("b")
    group.advance(30)
    assert group.running("b") == [], "the rebalance timeout is 60 s"
    story = group.story()
    assert re.search(rf"s  a: c-\d: stop raised: stuck \(OSError\) {HERE}", story, re.MULTILINE), story
    assert "the stop failed, so it is not acknowledged: OSError: stuck" in story
    group.stop("a")
    group.until(lambda: len(group.running("b")) == 3, within=5)
    assert "the stop failed, but this worker leaves the group: OSError: stuck" in group.story()


def test_story_names_the_line_of_an_assignor_that_raises(worker_group: StartGroup) -> None:
    class Raises(ConnectAssignor):
        name = "raises"

        def assign(self, group: ConnectAssignorInput) -> ConnectAssignment:
            raise ValueError("no idea")

    group = worker_group(["a"], connectors={"c": 1}, assignors=[Raises])
    group.wait_until_stable()
    assert re.search(rf"s  a: assignor 'raises' .*: no idea {HERE}", group.story(), re.MULTILINE), group.story()


def test_error_of_an_assignor_that_hangs_names_its_time_limit(worker_group: StartGroup) -> None:
    class Hangs(ConnectAssignor):
        name = "hangs"

        def assign(self, group: ConnectAssignorInput) -> ConnectAssignment:
            time.sleep(3600)
            return ConnectAssignment()

    group = worker_group(["a"], connectors={"c": 1}, assignors=[Hangs])
    group.wait_until_stable(within=400)
    described = group.describe()
    assert described is not None
    assert described.assignor_error.endswith("an earlier call did not return within 30 s, and still runs")


def test_story_of_one_group_has_no_errors_of_another(worker_group: StartGroup) -> None:
    groups = [worker_group(["a"], connectors={"c": 1}, listeners=[Raising]) for _ in range(2)]
    for group in groups:
        group.wait_until_stable()
    groups[0].stop("a")
    assert ["not flushed" in group.story() for group in groups] == [True, False]

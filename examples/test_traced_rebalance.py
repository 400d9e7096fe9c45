"""A rebalance and its trace: five workers, one is killed, and the spans show what the others did about it.

pip install 'connectgroup[testing]'
pytest examples/test_traced_rebalance.py

Needs no Spark and no Kafka. Time is virtual: the ten seconds until the dead worker's session expires take milliseconds.
"""

from __future__ import annotations

from connectgroup.testing import Spans, StartGroup


def test_rebalance_after_a_crash_is_one_trace(worker_group: StartGroup, spans: Spans) -> None:
    group = worker_group(workers=5, connectors={"numbers": 10})
    group.wait_until_stable()
    moved = group.running("worker-3")

    group.kill("worker-3")
    waited_s = group.wait_until_stable()
    assert 9 < waited_s < 12

    # One trace: the cause at the coordinator is its root.
    rebalance = spans.rebalances()[-1]
    assert any("worker-3" in cause for cause in rebalance.causes)
    assert rebalance.attributes["connectgroup.rebalance.moved"] == len(moved)

    # One worker computed the new target assignment.
    compute = rebalance.assert_has("compute")
    for step in ("prepare", "assign", "install"):
        compute.assert_has(step, worker=compute.worker)

    # The new owners were assigned the tasks and started them; no other task stopped.
    new_owners = {group.owners()[unit] for unit in moved}
    assert rebalance.workers("assign > start") == new_owners
    rebalance.assert_has_not("revoke")
    rebalance.assert_has_not("compute", worker="worker-3")

    spans.assert_no_orphans()

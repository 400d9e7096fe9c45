"""``/connectors/{name}/offsets`` (KIP-875) , on real stores."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from connectgroup import Worker
from connectgroup.connector import Config, Connector, Task, TaskContext, fencing_token
from connectgroup.connectors.pipeline import PipelineConnector
from connectgroup.dataplane.errors import TaskFenced
from connectgroup.dataplane.offset_store import OffsetStore
from connectgroup.dataplane.ownership import Owner, Range
from tests.coordinator.builders import GROUP, serving

from .conftest import Api, rest_server, running_worker

NOT_STOPPED = (
    "Connectors must be in the STOPPED state before their offsets can be modified. This can be done for the specified"
    " connector by issuing a 'PUT' request to the '/connectors/c/stop' endpoint"
)


def pipeline(root: Path, **more: str) -> dict[str, str]:
    """A pipeline from files to SQLite."""
    return {
        "connector.class": "pipeline",
        "source": "files",
        "source.path": str(root / "in"),
        "source.format": "csv",
        "source.schema": "a INT",
        "sink": "sqlite",
        "sink.path": str(root / "out.db"),
        "sink.table": "t",
        **more,
    }


def body(**positions: int | None) -> dict[str, Any]:
    """The body of a PATCH, and of the response to a GET."""
    return {
        "offsets": [
            {"partition": {"slice": name}, "offset": None if position is None else {"position": position}}
            for name, position in positions.items()
        ]
    }


async def stopped(api: Api, config: dict[str, str]) -> None:
    await api("POST", "/connectors", 201, {"name": "c", "config": config, "initial_state": "STOPPED"})


async def test_offsets_are_shown_altered_and_reset(api: Api, tmp_path: Path) -> None:
    await stopped(api, pipeline(tmp_path))
    assert await api("GET", "/connectors/c/offsets", 200) == {"offsets": []}
    assert not (tmp_path / "out.db").exists(), "a GET creates nothing"
    altered = {"message": "The offsets for this connector have been altered successfully"}
    assert await api("PATCH", "/connectors/c/offsets", 200, body(a=5, b=7)) == altered
    assert await api("PATCH", "/connectors/c/offsets", 200, body(a=2, b=None, d=0)) == altered
    assert await api("GET", "/connectors/c/offsets", 200) == body(a=2, d=0)
    reset = {"message": "The offsets for this connector have been reset successfully"}
    for _ in range(2):
        assert await api("DELETE", "/connectors/c/offsets", 200) == reset
    assert await api("GET", "/connectors/c/offsets", 200) == {"offsets": []}


async def test_offsets_that_a_connector_may_have_elsewhere_are_named(
    api: Api, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``alterOffsets`` of a plug-in in Java returns false: with the texts of Kafka Connect."""
    monkeypatch.setattr(PipelineConnector, "alter_offsets", lambda *_: False)
    await stopped(api, pipeline(tmp_path))
    for verb, answer in (
        ("altered", await api("PATCH", "/connectors/c/offsets", 200, body(a=5))),
        ("reset", await api("DELETE", "/connectors/c/offsets", 200)),
    ):
        assert answer == {
            "message": f"The Connect framework-managed offsets for this connector have been {verb} successfully."
            " However, if this connector manages offsets externally, they will need to be manually"
            f" {verb} in the system that the connector uses."
        }


@pytest.mark.parametrize("sink", ["jsonl", "console"])
async def test_offsets_of_other_sinks_in_files(api: Api, tmp_path: Path, sink: str) -> None:
    config = {key: value for key, value in pipeline(tmp_path).items() if not key.startswith("sink.")}
    place = "sink.path" if sink == "jsonl" else "sink.offsets"
    await stopped(api, {**config, "sink": sink, place: str(tmp_path / "out")})
    await api("PATCH", "/connectors/c/offsets", 200, body(a=5))
    assert await api("GET", "/connectors/c/offsets", 200) == body(a=5)


async def test_sink_that_stores_no_offsets_is_the_reason_that_they_cannot_be_changed(api: Api, tmp_path: Path) -> None:
    config = {key: value for key, value in pipeline(tmp_path).items() if not key.startswith("sink.")}
    await stopped(api, {**config, "sink": "console"})
    message = await api("DELETE", "/connectors/c/offsets", 400)
    assert "its sink stores none outside of the task; allowed: another sink, or a file as sink.offsets" in message


async def test_offsets_of_a_kafka_source_have_kafka_connects_form(api: Api, tmp_path: Path) -> None:
    config = {key: value for key, value in pipeline(tmp_path).items() if not key.startswith("source")}
    kafka = {"source": "kafka", "source.bootstrap.servers": "127.0.0.1:1", "source.topics": "t-1,u"}
    await stopped(api, {**config, **kafka})
    offsets = {
        "offsets": [{"partition": {"kafka_topic": "t-1", "kafka_partition": 3}, "offset": {"kafka_offset": 1 << 40}}]
    }
    await api("PATCH", "/connectors/c/offsets", 200, offsets)
    assert await api("GET", "/connectors/c/offsets", 200) == offsets
    assert "partition.kafka_topic: missing" in await api("PATCH", "/connectors/c/offsets", 400, body(a=1))


@pytest.mark.parametrize("state", ["RUNNING", "PAUSED"])
async def test_offsets_are_changed_only_while_the_connector_is_stopped(api: Api, tmp_path: Path, state: str) -> None:
    await api("POST", "/connectors", 201, {"name": "c", "config": pipeline(tmp_path), "initial_state": state})
    assert await api("PATCH", "/connectors/c/offsets", 400, body(a=1)) == NOT_STOPPED
    assert await api("DELETE", "/connectors/c/offsets", 400) == NOT_STOPPED
    assert await api("GET", "/connectors/c/offsets", 200) == {"offsets": []}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({}, "Partitions / offsets need to be provided for an alter offsets request"),
        ({"offsets": None}, "Partitions / offsets need to be provided for an alter offsets request"),
        ({"offsets": []}, "Partitions / offsets need to be provided for an alter offsets request"),
        ({"offsets": {}}, "offsets: got 'an object'; allowed: a list of at most 10000 partitions"),
        ({"offsets": [{}] * 10_001}, "offsets: got '10001 partitions'; allowed: a list of at most 10000"),
        ({"offsets": [1]}, "offsets[0]: got 'a number'; allowed: an object"),
        ({"offsets": [{"partition": {"slice": "a"}}]}, "offsets[0]: got 'partition'; allowed: an object"),
        ({"offsets": [{"partition": {}, "offset": None}]}, "offsets[0].partition: got 'an object'"),
        ({"offsets": [{"partition": {"slice": "a"}, "offset": 3}]}, "offsets[0].offset: got 'a number'"),
        ({"offsets": [{"partition": {"slice": "a"}, "offset": {"at": 3}}]}, "offset.at: unknown; allowed: position"),
        ({"offsets": [{"partition": {"slice": 1}, "offset": None}]}, "partition.slice: got '1'; allowed: a text"),
        (body(a=-1), "offset.position: got '-1'; allowed: a whole number from 0"),
        (body(a=1 << 63), "offset.position: got '9223372036854775808'; allowed: a whole number from 0"),
        (body(a=True), "offset.position: got 'True'; allowed: a whole number"),
        ({"offsets": body(a=1)["offsets"] * 2}, "partition: got 'a'; allowed: each partition once"),
        ({"offsets": [], "force": True}, "body: got 'force'; allowed: offsets"),
    ],
)
async def test_an_invalid_change_is_400_and_changes_nothing(
    api: Api, tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    await stopped(api, pipeline(tmp_path))
    await api("PATCH", "/connectors/c/offsets", 200, body(z=9))
    assert message in await api("PATCH", "/connectors/c/offsets", 400, change)
    assert await api("GET", "/connectors/c/offsets", 200) == body(z=9)


async def test_an_unknown_connector_is_404(api: Api) -> None:
    for group_exists in (False, True):
        for method, path, content in (
            ("GET", "offsets", None),
            ("PATCH", "offsets", body(a=1)),
            ("DELETE", "offsets", None),
            ("GET", "topics", None),
            ("PUT", "topics/reset", None),
        ):
            assert await api(method, f"/connectors/c/{path}", 404, content) == "Connector c not found"
        if not group_exists:
            await api("POST", "/connectors", 201, {"name": "d", "config": {"connector.class": "idle"}})


async def test_a_connector_without_offsets_says_so(api: Api, tmp_path: Path) -> None:
    await stopped(api, {"connector.class": "idle"})
    assert await api("GET", "/connectors/c/offsets", 200) == {"offsets": []}
    assert "doesn't support external modification of offsets" in await api("DELETE", "/connectors/c/offsets", 400)
    assert await api("GET", "/connectors/c/topics", 200) == {"c": {"topics": []}}


async def test_an_unusable_store_is_500_with_its_error(api: Api, tmp_path: Path) -> None:
    (tmp_path / "out.db").write_text("no database " * 100)
    await stopped(api, pipeline(tmp_path))
    assert "not an SQLite database" in await api("GET", "/connectors/c/offsets", 500)
    await api("PUT", "/connectors/c/config", 200, pipeline(tmp_path, **{"sink.path": str(tmp_path / "no" / "x.db")}))
    assert "cannot be opened" in await api("PATCH", "/connectors/c/offsets", 500, body(a=1))


async def test_credentials_of_the_sink_are_used_and_never_shown(api: Api, tmp_path: Path) -> None:
    config = {key: value for key, value in pipeline(tmp_path).items() if not key.startswith("sink")}
    postgres = {
        "sink": "postgres",
        "sink.table": "t",
        "sink.url": "postgresql://u@127.0.0.1:1/d?connect_timeout=1",
        "sink.password": "canary-secret",
    }
    await stopped(api, {**config, **postgres})
    assert "canary" not in await api("GET", "/connectors/c/offsets", 500)
    assert "canary" not in await api("DELETE", "/connectors/c/offsets", 500)


# ---- with tasks that claim and commit


class ClaimingConnector(Connector):
    """Replaces the pipeline on the worker: a task claims the sink's store and commits one range."""

    owners: list[tuple[Owner, dict[str, int]]]

    def task_configs(self, max_tasks: int) -> Sequence[Config]:
        return [{"task": str(number), "tasks": str(max_tasks)} for number in range(max_tasks)]

    def task(self, config: Config, context: TaskContext) -> Task:
        return ClaimingTask(self, config, context)


class ClaimingTask(Task):
    def __init__(self, connector: ClaimingConnector, config: Config, context: TaskContext) -> None:
        self.connector, self.config, self.context = connector, config, context

    def start(self) -> None:
        task, tasks = int(self.config["task"]), int(self.config["tasks"])
        name = self.connector.name
        owner = Owner(
            connector=name, task=task, tasks=tasks, fencing_token=self.context.fencing_token, source="numbers"
        )
        with closing(OffsetStore(Path(self.connector.config["sink.path"]))) as store:
            positions = store.claim(owner, lambda slice_name: slice_name == f"s{task}")
            start = positions.get(f"s{task}", 0)
            store.commit(owner, [Range(slice=f"s{task}", start=start, end=start + 10)])
        type(self.connector).owners.append((owner, positions))

    def stop(self) -> None:
        pass


@pytest.fixture
def claims() -> list[tuple[Owner, dict[str, int]]]:
    """The owners that have claimed, with the positions that they found."""
    ClaimingConnector.owners = []
    return ClaimingConnector.owners


@pytest.fixture
async def claiming_worker(api: Api, tmp_path: Path) -> AsyncIterator[Worker]:
    async with running_worker(api, tmp_path / "scratch", lambda _: ClaimingConnector) as worker:
        yield worker


async def test_tasks_start_from_altered_offsets_after_a_resume_and_earlier_tasks_are_fenced(
    api: Api, claiming_worker: Worker, claims: list[tuple[Owner, dict[str, int]]], tmp_path: Path
) -> None:
    def running(status: dict[str, Any]) -> bool:
        return [task["state"] for task in status["tasks"]] == ["RUNNING", "RUNNING"]

    await api("POST", "/connectors", 201, {"name": "c", "config": pipeline(tmp_path, **{"tasks.max": "2"})})
    await api.until(running, "/connectors/c/status")
    assert await api("GET", "/connectors/c/offsets", 200) == body(s0=10, s1=10)
    (zombie, _), *_ = claims
    await api("PUT", "/connectors/c/stop", 204)
    # At once: the fence, not the state of the worker, protects the change.
    await api("PATCH", "/connectors/c/offsets", 200, body(s0=100, s1=None))
    with closing(OffsetStore(tmp_path / "out.db")) as store:
        with pytest.raises(TaskFenced):
            store.commit(zombie, [Range(slice=f"s{zombie.task}", start=10, end=20)])
        with pytest.raises(TaskFenced):
            store.claim(zombie, lambda _: True)
    assert await api("GET", "/connectors/c/offsets", 200) == body(s0=100)
    del claims[:]
    await api("PUT", "/connectors/c/resume", 202)
    await api.until(running, "/connectors/c/status")
    assert {owner.task: positions for owner, positions in claims} == {0: {"s0": 100}, 1: {}}
    assert await api("GET", "/connectors/c/offsets", 200) == body(s0=110, s1=10)


async def test_a_change_that_arrives_after_a_resume_is_rejected(
    api: Api, claiming_worker: Worker, claims: list[tuple[Owner, dict[str, int]]], tmp_path: Path
) -> None:
    await stopped(api, pipeline(tmp_path))
    group = await api.admin.describe(GROUP)

    before = fencing_token(group.incarnation, group.connectors[0].version)
    await api("PUT", "/connectors/c/resume", 202)
    await api.until(lambda status: [t["state"] for t in status["tasks"]] == ["RUNNING"], "/connectors/c/status")
    with closing(OffsetStore(tmp_path / "out.db")) as store, pytest.raises(TaskFenced):
        store.alter("c", before, {"s0": 0})
    assert before < claims[0][0].fencing_token
    assert await api("GET", "/connectors/c/offsets", 200) == body(s0=10)


async def test_files_outside_the_servers_list_are_neither_configured_nor_opened(tmp_path: Path) -> None:
    """A request about offsets opens the sink's file in this process, as its user."""
    config = pipeline(tmp_path)
    what = f"got '{tmp_path / 'out.db'}'; allowed: a path at or below one of allowed_paths ({tmp_path / 'in'})"
    async with serving() as coordinator:
        async with rest_server(coordinator, allowed_paths=(tmp_path / "in",)) as api:
            refused = await api("POST", "/connectors", 400, {"name": "c", "config": config})
            assert what in refused
            validated = await api("PUT", "/connector-plugins/pipeline/config/validate", 200, {**config, "name": "c"})
            assert [each["value"]["name"] for each in validated["configs"] if each["value"]["errors"]] == ["sink.path"]
            # The server tries what it may use.
            inner = tmp_path / "in"
            places = {"source.path": str(inner / "files"), "sink.path": str(inner / "nowhere" / "out.db")}
            config = {**config, **places}
            validated = await api("PUT", "/connector-plugins/pipeline/config/validate", 200, {**config, "name": "c"})
            wrong = [each["value"]["name"] for each in validated["configs"] if each["value"]["errors"]]
            assert wrong == ["source.path", "sink.path"]
            config = pipeline(tmp_path)
        async with rest_server(coordinator, allowed_paths=None) as api:
            await stopped(api, config)
            for method, sent in (("GET", None), ("PATCH", body(a=5)), ("DELETE", None)):
                refused = await api(method, "/connectors/c/offsets", 400, sent)
                assert "allowed_paths (none)" in refused
    assert not (tmp_path / "out.db").exists()

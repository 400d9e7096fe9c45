"""Help, version and imports of the installed package."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import connectgroup

from ..integration.processes import PATIENCE_S, Program, call_command, run_command, wait
from .connector_files import idle_connector_file

GROUP = "sleepers"


@pytest.fixture
def idle(tmp_path: Path) -> Path:
    """The file of an idle connector."""
    return idle_connector_file(tmp_path / "idle.json")


def test_every_command_has_help() -> None:
    for arguments in (
        [],
        ["up"],
        ["coordinator"],
        ["worker"],
        ["groups"],
        ["groups", "describe"],
        ["workers", "restart"],
    ):
        done = call_command(*arguments, "--help")
        assert (done.code, done.err) == (0, "")
        assert done.out.startswith(" ".join(["usage: connectgroup", *arguments]))


def test_installed_script_is_the_same_command() -> None:
    script = Path(sys.executable).parent / "connectgroup"
    done = subprocess.run([script, "groups", "--help"], capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert (done.returncode, done.stdout) == (0, run_command("groups", "--help").out)


def test_importing_the_package_imports_no_optional_dependency() -> None:
    """``import connectgroup`` loads no heavy module; a name loads its module when it is first used."""
    heavy = {"numpy", "pydantic", "pyspark", "pyarrow", "pandas", "opentelemetry", "tenacity", "sqlite3", "asyncio"}
    code = "import sys, connectgroup; print(*sorted(name.partition('.')[0] for name in sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE_S, check=True)
    assert not heavy & set(done.stdout.split())
    assert "connectgroup" in done.stdout.split()


ONLY_BASE = """
import sys
import re
from importlib.metadata import PackageNotFoundError, distribution, packages_distributions

def plain(name):
    return re.sub("[-_.]+", "-", name).lower()

allowed, pending = {"connectgroup"}, ["connectgroup"]
while pending:
    try:
        needs = distribution(pending.pop()).requires or []
    except PackageNotFoundError:
        continue  # for another platform, or part of Python
    for need in needs:
        name = plain(re.match(r"[\\w.-]+", need)[0])
        if "extra ==" not in need and name not in allowed:
            allowed.add(name)
            pending.append(name)
# Modules of no distribution belong to Python.
others = {module for module, names in packages_distributions().items() if not {plain(name) for name in names} & allowed}

class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in others:
            raise ModuleNotFoundError(f"not a base package: {name}", name=name)

sys.meta_path.insert(0, Refuse())
"""


@pytest.fixture
def only_base(tmp_path: Path) -> dict[str, str]:
    """The environment of processes that can import only the package's base dependencies."""
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(ONLY_BASE)
    return {"PYTHONPATH": os.pathsep.join(filter(None, (str(tmp_path / "site"), os.environ.get("PYTHONPATH"))))}


def test_worker_without_spark_does_not_join_a_group_whose_connectors_need_it(
    tmp_path: Path, only_base: dict[str, str]
) -> None:
    """It would be assigned tasks that it cannot run. With a label that it does not have, it may join."""
    file = tmp_path / "rows.json"
    config = {"connector.class": "pipeline", "source": "datagen", "sink": "sqlite", "sink.table": "t"}
    settings = config | {"sink.path": str(tmp_path / "out.db")}
    with Program("coordinator", "--port", 0, "--data", tmp_path / "data") as coordinator:
        at = coordinator.line_with("coordinator at ").removeprefix("coordinator at ").partition(",")[0]
        place = ("--coordinator", at)
        file.write_text(json.dumps({"name": "rows", "config": settings}))
        assert call_command("connectors", "create", file, *place).code == 0
        refused = run_command("worker", "--group", "workers", "--name", "w", *place, environment=only_base)
        assert refused.code == 2
        assert refused.err.splitlines()[-1] == (
            "connectgroup: connector rows of group workers: spark: got 'no package pyspark';"
            " allowed: pip install 'connectgroup[spark]' on each worker"
        )
        assert "Traceback" not in refused.err
        assert "worker w" not in call_command("groups", "describe", "workers", *place).out
        file.write_text(json.dumps({"name": "rows", "config": settings | {"assignment.labels": "spark=true"}}))
        assert call_command("connectors", "update", file, *place).code == 0
        with Program("worker", "--group", "workers", "--name", "w", *place, environment=only_base) as worker:
            joined = lambda: "worker w" in call_command("groups", "describe", "workers", *place).out  # noqa: E731
            wait("the worker in the group", joined, worker.output)


def test_group_runs_with_the_base_packages_alone(idle: Path, tmp_path: Path, only_base: dict[str, str]) -> None:
    """No Spark, no Kafka, no web framework: a coordinator, a worker and every public name, in processes that can import
    only the package's base dependencies.
    """
    code = (
        "import connectgroup, sys\n"
        "print(len([getattr(connectgroup, name) for name in connectgroup.__all__]))\n"
        "try:\n    import pyarrow\nexcept ModuleNotFoundError as error:\n    print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
        env={**os.environ, **only_base},
    )
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(r"\d+\nnot a base package: pyarrow\n", done.stdout)
    arguments = ("--data", tmp_path / "data", "--connector", idle, "--port", 0, "--workers", 1)
    with Program("up", *arguments, environment=only_base) as up:
        up.line_with("| 1 worker | 3/3 units |")
        at = up.line_with("coordinator at ").removeprefix("coordinator at ").partition(",")[0]

        def all_run() -> bool:
            described = run_command("groups", "describe", "workers", "--coordinator", at, environment=only_base).out
            return described.count(": RUNNING on worker-1") == 3

        wait("running tasks", all_run, up.output)
        up.signal(signal.SIGTERM)
        assert up.ended() == 0, up.output()


def test_the_version_is_printed() -> None:
    done = run_command("--version")
    assert (done.code, done.out, done.err) == (0, f"connectgroup {connectgroup.__version__}\n", "")

"""Plug-ins come from installed distributions: a folder with code and a ``.dist-info`` on the path."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from connectgroup.cli.command import main
from connectgroup.errors import ConfigError, PluginError
from connectgroup.plugins import available, load_assignor, load_connector_class, load_listener
from tests.distribution import make_distribution

Install = Callable[..., None]

HEADER = """
from connectgroup.assign.api import ConnectAssignor
from connectgroup.connector import Connector
from connectgroup.listener import WorkerRebalanceListener
class Good(ConnectAssignor):
    name = "good"
    def assign(self, group): ...
class OtherName(Good):
    name = "other"
class BadVersions(Good):
    name = "bad-versions"
    minimum_version = 4
class Awaited(Good):
    name = "awaited"
    async def assign(self, group): ...
class Misspelt(Good):
    name = "misspelt"
    def on_assigned(self, assignment): ...
class OwnMethods(Good):
    name = "own-methods"
    def _metadata(self): ...
    def weigh(self): ...
class NoName(Good):
    name = ""
class Abstract(ConnectAssignor):
    name = "abstract"
class Picky(Good):
    name = "picky"
    def __init__(self, what): ...
class Quits(Good):
    name = "quits"
    def __init__(self):
        raise SystemExit(2)
class Listens(WorkerRebalanceListener): ...
class Half(Connector):
    def task_configs(self, most): ...
class Whole(Half):
    def task(self, config, context): ...
class Stranger: ...
def function(): ...
"""


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Put a distribution on the path: ``install("dist", "connectgroup.assignors", good="module:Good")``."""
    before = set(sys.modules)

    def put(distribution: str, group: str, code: str = HEADER, **entries: str) -> None:
        site = tmp_path / distribution
        make_distribution(site, distribution, group, code, **entries)
        monkeypatch.syspath_prepend(str(site))
        importlib.invalidate_caches()

    yield put
    for name in set(sys.modules) - before:
        if name.endswith("_code"):
            del sys.modules[name]


def test_plug_in_is_found_by_its_entry_point_name(install: Install) -> None:
    install("mine", "connectgroup.assignors", good=":Good")
    install("ears", "connectgroup.listeners", ears=":Listens")
    install("work", "connectgroup.connectors", whole=":Whole")
    assert load_assignor("good").name == "good"
    assert type(load_listener("ears")).__name__ == "Listens"
    assert load_connector_class("whole").__name__ == "Whole"
    assert "good" in available("assignors")
    assert load_assignor("good") is not load_assignor("good"), "each load creates an object"


@pytest.mark.parametrize("name", ["", "nope", "mine_code:Good", "os.path", "connectgroup.plugins:Kind", "../good"])
def test_unknown_name_lists_the_available_ones_and_imports_nothing(install: Install, name: str) -> None:
    install("mine", "connectgroup.assignors", code="raise RuntimeError('imported')", good=":Good")
    with pytest.raises(ConfigError) as caught:
        load_assignor(name)
    assert str(caught.value).startswith(f"assignor: got {name!r}; allowed: ")
    assert "good" in str(caught.value).partition("allowed: ")[2].split(", ")
    assert "mine_code" not in sys.modules


def test_assignor_may_have_methods_of_its_own(install: Install) -> None:
    install("mine", "connectgroup.assignors", **{"own-methods": ":OwnMethods"})
    assert load_assignor("own-methods").name == "own-methods"


def test_each_kind_has_its_own_names(install: Install) -> None:
    install("mine", "connectgroup.assignors", good=":Good")
    with pytest.raises(ConfigError, match=r"^connector\.class: got 'good'; allowed: "):
        load_connector_class("good")
    with pytest.raises(ConfigError, match=r"^listener: got 'good'; allowed: "):
        load_listener("good")


def test_two_plug_ins_of_one_name_are_rejected_naming_both(install: Install) -> None:
    """KAFKA-20843: accepted silently there, with a crash later."""
    install("first", "connectgroup.assignors", good=":Good")
    install("second", "connectgroup.assignors", good=":Good")
    with pytest.raises(PluginError) as caught:
        load_assignor("good")
    assert str(caught.value) == (
        "assignor 'good' is defined more than once: assignor 'good' (first_code:Good of first 1.0); "
        "assignor 'good' (second_code:Good of second 1.0)"
    )


def test_list_of_plug_ins_shows_one_that_was_installed_since(
    install: Install, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plugins", "list"]) == 0
    install("first", "connectgroup.sinks", lately=":Any")
    capsys.readouterr()
    main(["plugins", "list"])
    assert ["sink", "lately", "1.0"] in [line.split()[:3] for line in capsys.readouterr().out.splitlines()]


def test_list_of_plug_ins_names_those_that_cannot_be_loaded(
    install: Install, capsys: pytest.CaptureFixture[str]
) -> None:
    install("first", "connectgroup.assignors", good=":Good", gone=":Gone")
    install("second", "connectgroup.assignors", good=":Good")
    install("broken", "connectgroup.connectors", code="import nosuch", nosuch=":Any")
    assert main(["plugins", "list"]) == 0
    printed = capsys.readouterr()
    assert "gone" in printed.out
    lines = printed.err.splitlines()
    assert len(lines) == 3
    assert any("assignor 'good' is defined more than once: " in line for line in lines)
    assert any("assignor 'gone' (first_code:Gone of first 1.0): cannot be imported: " in line for line in lines)
    assert any("connector 'nosuch' (broken_code:Any of broken 1.0): cannot be imported: " in line for line in lines)


def test_built_in_name_cannot_be_redefined(install: Install) -> None:
    install("connectgroup-built-in", "connectgroup.assignors", balanced=":Good")
    install("thief", "connectgroup.assignors", balanced=":Good")
    with pytest.raises(PluginError, match=r"more than once.*connectgroup.*thief_code:Good of thief 1\.0"):
        load_assignor("balanced")


@pytest.mark.parametrize(
    ("name", "value", "line"),
    [
        ("missing", ":Missing", "cannot be imported: AttributeError: module 'bad_code' has no attribute 'Missing'"),
        ("nowhere", ".deep:Good", "cannot be imported: ModuleNotFoundError: No module named 'bad_code.deep'"),
        ("stranger", ":Stranger", "is not a subclass of ConnectAssignor"),
        ("function", ":function", "is not a subclass of ConnectAssignor"),
        ("listens", ":Listens", "is not a subclass of ConnectAssignor"),
        ("abstract", ":Abstract", "is abstract; missing: assign"),
        ("picky", ":Picky", "cannot be made: TypeError: Picky.__init__() missing 1 required positional argument"),
        ("quits", ":Quits", "cannot be made: SystemExit: 2"),
        ("alias", ":OtherName", "name: got 'other'; allowed: 'alias', as its entry point says"),
        ("none", ":NoName", "name: got ''; allowed: a non-empty string"),
        ("bad-versions", ":BadVersions", "maximum_version: got 0; allowed: 4 .. 32767"),
        (
            "awaited",
            ":Awaited",
            "assign: got 'a coroutine function'; allowed: a plain function, which runs in a thread",
        ),
        ("misspelt", ":Misspelt", "on_assigned: unknown; allowed: on_assignment (did you mean that?)"),
    ],
)
def test_invalid_plug_in_is_one_line_naming_it(install: Install, name: str, value: str, line: str) -> None:
    install("bad", "connectgroup.assignors", **{name.replace("-", "_"): value})
    with pytest.raises(PluginError) as caught:
        load_assignor(name)
    assert str(caught.value).startswith(f"assignor {name!r} (bad_code{value} of bad 1.0): {line}")
    assert str(caught.value).isprintable()


@pytest.mark.parametrize(
    ("code", "line"),
    [
        ("import sys; sys.exit('bye')", "cannot be imported: SystemExit: bye"),
        ("import no_such_module", "cannot be imported: ModuleNotFoundError: No module named 'no_such_module'"),
        ("def", "cannot be imported: SyntaxError: invalid syntax"),
        (r"raise ValueError('a\nb\x1b[31m')", r"cannot be imported: ValueError: a\nb\x1b[31m"),
    ],
)
def test_module_that_cannot_be_imported_is_one_line(install: Install, code: str, line: str) -> None:
    install("bad", "connectgroup.listeners", code=code, ears=":Listens")
    with pytest.raises(PluginError) as caught:
        load_listener("ears")
    assert str(caught.value).startswith(f"listener 'ears' (bad_code:Listens of bad 1.0): {line}")
    assert str(caught.value).isprintable()


@pytest.mark.parametrize(
    ("code", "value", "line"),
    [
        ("import os\n\n1 / 0\n", ":Any", 3),
        ("import json\njson.loads('no')\n", ":Any", 2),
        ("import os\ndef\n", ":Any", 2),
        ("class Fails:\n    pass\n", ":Missing", None),
    ],
)
def test_failed_import_is_located_in_the_plug_ins_own_code(
    install: Install, tmp_path: Path, code: str, value: str, line: int | None
) -> None:
    """File and line are for the log; the message may be sent to other machines."""
    install("bad", "connectgroup.listeners", code=code, ears=value)
    with pytest.raises(PluginError, match="cannot be imported") as caught:
        load_listener("ears")
    file = Path(caught.value.location.rpartition(":")[0]).name
    assert (file, caught.value.location.rpartition(":")[2]) == (("bad_code.py", str(line)) if line else ("", ""))
    assert "bad_code.py:" not in str(caught.value)


def test_failed_constructor_is_located_in_the_plug_ins_own_code(install: Install) -> None:
    code = """
from connectgroup.listener import WorkerRebalanceListener

class Ears(WorkerRebalanceListener):
    def __init__(self):
        self.heard = {}["nothing"]
"""
    install("bad", "connectgroup.listeners", code=code, ears=":Ears")
    with pytest.raises(PluginError, match="cannot be made: KeyError") as caught:
        load_listener("ears")
    assert caught.value.location.endswith("bad_code.py:6")


def test_abstract_connector_names_its_missing_methods(install: Install) -> None:
    install("work", "connectgroup.connectors", half=":Half")
    with pytest.raises(PluginError, match=r"connector 'half' .*: is abstract; missing: task$"):
        load_connector_class("half")


def test_command_prints_the_location_of_a_plug_in_that_cannot_be_imported(
    install: Install, capsys: pytest.CaptureFixture[str]
) -> None:
    install("bad", "connectgroup.listeners", code="import os\n1 / 0\n", ears=":Any")
    assert main(["worker", "--group", "g", "--coordinator", "127.0.0.1:1", "--listener", "ears"]) == 2
    error = capsys.readouterr().err
    assert "cannot be imported: ZeroDivisionError" in error
    assert error.endswith("bad_code.py:2)\n")
    assert error.count("\n") == 1

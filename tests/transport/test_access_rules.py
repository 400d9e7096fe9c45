"""Rules of access: the lines of the file, what they allow, and a file that changes."""

from __future__ import annotations

import os
import tracemalloc
from pathlib import Path

import pytest

from connectgroup.errors import ConfigError
from connectgroup.transport.access_rules import (
    AccessOperation,
    AccessRules,
    Resource,
    allows,
    allows_all,
    allows_some,
    parse_rules,
)
from tests.consumer.inside import eventually

READ, DESCRIBE, ALTER, DELETE = (
    AccessOperation.READ,
    AccessOperation.DESCRIBE,
    AccessOperation.ALTER,
    AccessOperation.DELETE,
)

RULES = """
# comments and empty lines are none

allow alice all group orders-*
allow alice alter,read group orders-eu connector billing-*
deny  alice delete group orders-eu
allow * describe group public
allow "CN=worker,O=An example" Read group 'a group'
allow root all group *
allow root all group * connector *
deny root alter group * connector payroll
"""


@pytest.mark.parametrize(
    ("principal", "operation", "group", "connector", "allowed"),
    [
        ("alice", READ, "orders-us", None, True),
        ("alice", DELETE, "orders-us", None, True),
        ("alice", READ, "orders", None, False),  # shorter than the beginning
        ("alice", DELETE, "orders-eu", None, False),  # a rule that denies takes precedence
        ("alice", DESCRIBE, "orders-eu", None, True),  # implied by the other operations, also beside a deny
        ("alice", ALTER, "orders-eu", "billing-1", True),
        ("alice", DESCRIBE, "orders-eu", "billing-1", True),
        ("alice", DELETE, "orders-eu", "billing-1", False),
        ("alice", ALTER, "orders-eu", "clicks", False),
        ("alice", ALTER, "orders-us", "billing-1", False),  # the group's rules are not those of its connectors
        ("bob", DESCRIBE, "public", None, True),
        ("bob", READ, "public", None, False),  # describe implies nothing
        ("bob", DESCRIBE, "public2", None, False),
        ("bob", DESCRIBE, "Public", None, False),
        ("CN=worker,O=An example", READ, "a group", None, True),
        ("root", ALTER, "any", "payroll", False),
        ("root", DESCRIBE, "any", "payroll", True),
        ("root", DELETE, "any", "payroll", True),
        ("nobody", DESCRIBE, "orders-eu", None, False),
    ],
)
def test_what_the_rules_allow(
    principal: str, operation: AccessOperation, group: str, connector: str | None, allowed: bool
) -> None:
    rules, _ = parse_rules(RULES.splitlines())
    assert allows(rules, principal, operation, Resource(group, connector)) is allowed


def test_all_connectors_and_any_connector() -> None:
    rules, _ = parse_rules(RULES.splitlines())
    assert allows_all(rules, "root", DESCRIBE, "any")
    assert not allows_all(rules, "root", ALTER, "any"), "one of them may not be altered"
    assert not allows_all(rules, "alice", DESCRIBE, "orders-eu")
    assert allows_some(rules, "alice", DESCRIBE, "orders-eu")
    assert not allows_some(rules, "alice", DELETE, "orders-eu")
    assert not allows_some(rules, "alice", DESCRIBE, "orders-us")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("permit a read group g", "got 'permit'; allowed: allow, deny, quota"),
        ("allow a write group g", "got 'write'; allowed: read, describe, alter, delete, all"),
        ("allow a read, alter group g", "got 'allow a read, alter group g'; allowed: allow or deny, PRINCIPAL"),
        ("allow a read topic g", "allowed: allow or deny, PRINCIPAL"),
        ("allow a read group g connector", "allowed: allow or deny, PRINCIPAL"),
        ("allow a read group g # why", "allowed: allow or deny, PRINCIPAL"),
        ("allow a read group *g", "got '*g'; allowed: a name, the beginning of names and *"),
        ("allow a* read group g", "got 'a*'; allowed: the name of a principal, or * for all"),
        ("allow '' read group g", "an empty principal"),
        ("allow a read group 'g", "quotes that are closed"),
        ("quota a", "allowed: quota PRINCIPAL NUMBER"),
        ("quota a 0", "allowed: quota PRINCIPAL NUMBER"),
        ("quota a 5\nquota a 6", "a second quota of a"),
    ],
)
def test_error_names_file_and_line(line: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "rules"
    path.write_text("# first\nallow a all group g\n" + line + "\n")
    number = 2 + len(line.splitlines())
    with pytest.raises(ConfigError) as raised:
        AccessRules(path)
    assert f"access_rules: {path}:{number}: " in str(raised.value)
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("make", [lambda path: None, lambda path: path.write_bytes(b"\xff"), lambda path: path.mkdir()])
def test_file_that_cannot_be_read_is_refused(make: object, tmp_path: Path) -> None:
    path = tmp_path / "rules"
    make(path)  # type: ignore[operator]
    with pytest.raises(ConfigError, match=r"access_rules: got .*rules"):
        AccessRules(path)


def test_file_that_every_user_may_write_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "rules"
    path.write_text("allow a all group g\n")
    path.chmod(0o666)
    with pytest.raises(ConfigError, match="not every user may write"):
        AccessRules(path)


def test_nothing_is_allowed_by_an_empty_file(tmp_path: Path) -> None:
    path = tmp_path / "rules"
    path.write_text("")
    rules = AccessRules(path)
    assert not any(rules.allows("a", each, Resource("g", name)) for each in AccessOperation for name in (None, "c"))


async def test_changed_file_is_read_again_and_a_faulty_one_leaves_the_former_rules(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "rules"
    path.write_text("allow a read group g\n")
    rules = AccessRules(path)

    def replace(text: str) -> None:
        other = tmp_path / "other"
        other.write_text(text)
        os.replace(other, path)

    assert rules.allows("a", READ, Resource("g"))
    replace("allow b read group g\nquota b 7\n")
    await eventually(lambda: rules.allows("b", READ, Resource("g")))
    assert not rules.allows("a", READ, Resource("g"))
    assert rules.quota("b") == 7
    replace("allow b\n")
    await eventually(lambda: rules.allows("b", READ, Resource("g")) and "the former rules stay" in caplog.text)
    assert rules.allows("b", READ, Resource("g"))
    path.unlink()
    assert rules.allows("b", READ, Resource("g"))
    replace("allow a read group g\n")
    await eventually(lambda: rules.allows("a", READ, Resource("g")))


async def test_names_that_are_too_long_are_decided_and_not_remembered(tmp_path: Path) -> None:
    """A request has room for megabytes of a name, and it is decided before the name is checked."""
    path = tmp_path / "rules"
    path.write_text("allow a read group g*\nallow a read group g* connector c*\n")
    rules = AccessRules(path)
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        for number in range(300):
            name = f"{number:0>100000}"
            assert rules.allows("a", READ, Resource(f"g{name}"))
            assert rules.allows("a", READ, Resource("g", f"c{name}"))
            assert not rules.allows("a", READ, Resource(name))
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert after - before < 1 << 20


async def test_principal_without_authentication_is_anonymous(tmp_path: Path) -> None:
    path = tmp_path / "rules"
    path.write_text("allow ANONYMOUS read group g\n")
    assert AccessRules(path).allows("", READ, Resource("g"))

"""Who may do what: rules for principals, as Kafka's access control lists, in one file for the protocol and for REST.

A line is a rule, a quota, a comment (it begins with ``#``) or empty; names with spaces are quoted as in a shell::

    allow alice     all             group orders-*
    allow alice     all             group orders-*  connector *
    allow bob       describe,alter  group orders-eu connector billing-*
    deny  *         delete          group *
    quota alice     200

A pattern is a name, the beginning of names and ``*``, or ``*`` for all. ``allows`` decides: what no rule allows is
denied, and a rule that denies takes precedence. Who is allowed to read, alter or delete is allowed to describe. Nothing
that decides looks at what exists, so that a refusal does not tell.

A group and its connectors are resources of their own: who may alter a group may restart its workers, and who may read
it may be one of its workers, which get the configurations of the connectors that they run.

Source: Kafka's ``AclAuthorizer``, ``AclOperation``; prefixes: KIP-290.
"""

from __future__ import annotations

import logging
import shlex
import stat
import time
from collections.abc import Iterable, Mapping
from enum import Enum
from functools import lru_cache
from pathlib import Path
from typing import Final, NamedTuple

from ..errors import ConfigError
from ..protocol.units import MAX_NAME_BYTES, printable
from .access import state_of
from .base import reason

ANONYMOUS: Final = "ANONYMOUS"
"""The principal of a client without authentication, as in Kafka."""

CHECK_S: Final = 1.0
"""Interval between two looks at the file."""

MAX_BYTES: Final = 1 << 20
MAX_DECISIONS: Final = 10_000
"""Decisions that are remembered; of names of at most ``MAX_NAME_BYTES`` characters: a request has room for longer ones,
which name nothing."""

logger = logging.getLogger(__name__)


class AccessOperation(Enum):
    """What a principal does with a resource."""

    READ = "Read"
    DESCRIBE = "Describe"
    ALTER = "Alter"
    DELETE = "Delete"


class Resource(NamedTuple):
    """A group, or one of its connectors."""

    group: str
    connector: str | None = None

    def __str__(self) -> str:
        group = f"group {printable(self.group)}"
        return group if self.connector is None else f"connector {printable(self.connector)} of {group}"


class Rule(NamedTuple):
    """One rule.

    Attributes:
        allows: whether it allows or denies.
        principal: a name, or ``*`` for all.
        operations: those that it names.
        group: the pattern of groups.
        connector: the pattern of connectors; ``None`` for a rule about the groups themselves.
    """

    allows: bool
    principal: str
    operations: frozenset[AccessOperation]
    group: str
    connector: str | None = None


def allows(rules: Iterable[Rule], principal: str, operation: AccessOperation, resource: Resource) -> bool:
    """Whether the rules allow an operation on a resource. This function alone decides."""
    allowed = False
    for rule in rules:
        if not (_is_for(rule, principal, resource.group) and _covers(rule.connector, resource.connector)):
            continue
        if not rule.allows and operation in rule.operations:
            return False
        allowed = allowed or (rule.allows and (operation in rule.operations or operation is AccessOperation.DESCRIBE))
    return allowed


def allows_all(rules: Iterable[Rule], principal: str, operation: AccessOperation, group: str) -> bool:
    """Whether the rules allow an operation on every connector of a group, also on those that it had."""
    of_connectors = [each for each in rules if each.connector is not None and _is_for(each, principal, group)]
    if any(operation in each.operations for each in of_connectors if not each.allows):
        return False
    everything = [each for each in of_connectors if each.connector == "*"]
    return allows(everything, principal, operation, Resource(group, "*"))


def allows_some(rules: Iterable[Rule], principal: str, operation: AccessOperation, group: str) -> bool:
    """Whether a rule allows an operation on any connector that a group may have."""
    return any(
        each.allows
        and each.connector is not None
        and _is_for(each, principal, group)
        and (operation in each.operations or operation is AccessOperation.DESCRIBE)
        for each in rules
    )


def _is_for(rule: Rule, principal: str, group: str) -> bool:
    return rule.principal in ("*", principal) and matches(rule.group, group)


def _covers(pattern: str | None, name: str | None) -> bool:
    if pattern is None or name is None:
        return pattern is name
    return matches(pattern, name)


def matches(pattern: str, name: str) -> bool:
    """Whether a name is the pattern, or begins as a pattern with a final ``*`` says."""
    return name.startswith(pattern[:-1]) if pattern.endswith("*") else name == pattern


# --------------------------------------------------------------------------------------------------
# The file.

_OPERATIONS: Final[Mapping[str, frozenset[AccessOperation]]] = {
    **{each.value.lower(): frozenset((each,)) for each in AccessOperation},
    "all": frozenset(AccessOperation),
}
_FORM: Final = (
    "allow or deny, PRINCIPAL, OPERATION,..., group PATTERN, and perhaps connector PATTERN; or quota PRINCIPAL NUMBER"
)


class _InvalidLine(Exception):
    """A line that is none of a file of rules: what it has, and what is allowed."""

    def __init__(self, got: str, allowed: str) -> None:
        super().__init__(got)
        self.got, self.allowed = got, allowed


def parse_rules(lines: Iterable[str], *, file: str = "") -> tuple[tuple[Rule, ...], dict[str, float]]:
    """Read the lines of a file of rules.

    Returns:
        The rules; and requests per second by principal, ``*`` for those without a line of their own.

    Raises:
        ConfigError: a line that is none; names the file and the number of the line.
    """
    rules: list[Rule] = []
    quotas: dict[str, float] = {}
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        try:
            words = _words(line)
            if words[0] == "quota":
                principal, quota = _quota(words)
                if principal in quotas:
                    raise _InvalidLine(f"a second quota of {principal}", "one quota for each principal")
                quotas[principal] = quota
            else:
                rules.append(_rule(words))
        except _InvalidLine as error:
            where = f"access_rules: {file}:{number}" if file else f"access_rules: line {number}"
            raise ConfigError(where, error.got, error.allowed, is_path=True) from None
    return tuple(rules), quotas


def _words(line: str) -> list[str]:
    try:
        return shlex.split(line, comments=False)
    except ValueError as error:
        raise _InvalidLine(line.strip(), f"quotes that are closed ({error})") from None


def _quota(words: list[str]) -> tuple[str, float]:
    allowed = "quota PRINCIPAL NUMBER, requests per second, 1 or more"
    try:
        _, principal, text = words
        number = int(text)
    except ValueError:
        raise _InvalidLine(" ".join(words), allowed) from None
    if not 1 <= number <= 10_000_000 or not principal:
        raise _InvalidLine(" ".join(words), allowed)
    return principal, float(number)


def _rule(words: list[str]) -> Rule:
    verb = words[0]
    if verb not in ("allow", "deny"):
        raise _InvalidLine(verb, "allow, deny, quota")
    connector: str | None = None
    match words[1:]:
        case [principal, operations, "group", group]:
            pass
        case [principal, operations, "group", group, "connector", connector]:
            pass
        case _:
            raise _InvalidLine(" ".join(words), _FORM)
    for kind, text in (("principal", principal), ("group", group), ("connector", connector)):
        if text == "":
            raise _InvalidLine(f"an empty {kind}", _FORM)
    if principal != "*" and principal.endswith("*"):
        raise _InvalidLine(principal, "the name of a principal, or * for all")
    for text in (group, connector or ""):
        if "*" in text[:-1]:
            raise _InvalidLine(text, "a name, the beginning of names and *, or * for all")
    named: set[AccessOperation] = set()
    for each in operations.split(","):
        if each.lower() not in _OPERATIONS:
            raise _InvalidLine(each, ", ".join(_OPERATIONS))
        named |= _OPERATIONS[each.lower()]
    return Rule(verb == "allow", principal, frozenset(named), group, connector)


class AccessRules:
    """The rules of a file, read again when it has changed; a file that cannot be used leaves the former rules in use.

    Attributes:
        rules, quotas: see ``parse_rules``; ``refresh`` changes them.
    """

    def __init__(self, path: Path) -> None:
        """Read the file.

        Raises:
            ConfigError: it cannot be used.
        """
        self._path = path
        self._state = state_of(path)  # changed by refresh
        self._look_at = time.monotonic() + CHECK_S
        self.rules: tuple[Rule, ...] = ()
        self.quotas: Mapping[str, float] = {}
        self._read()

    def _read(self) -> None:
        self.rules, self.quotas = _read_file(self._path)
        rules = self.rules
        self._remembered = lru_cache(MAX_DECISIONS)(
            lambda principal, operation, resource: allows(rules, principal, operation, resource)
        )

    def refresh(self) -> None:
        """Look at the file if that is due, and read it if it has changed. Decisions do so by themselves."""
        now = time.monotonic()
        if now < self._look_at:
            return
        self._look_at = now + CHECK_S
        if (state := state_of(self._path)) == self._state:
            return
        self._state = state
        try:
            self._read()
        except ConfigError as error:
            logger.error("%s; the former rules stay in use", error)
        else:
            logger.info("access_rules: %s was read again", self._path)

    def allows(self, principal: str, operation: AccessOperation, resource: Resource) -> bool:
        """See ``allows`` above; an empty principal is ``ANONYMOUS``."""
        self.refresh()
        if max(len(resource.group), len(resource.connector or "")) > MAX_NAME_BYTES:
            return allows(self.rules, principal or ANONYMOUS, operation, resource)
        return self._remembered(principal or ANONYMOUS, operation, resource)

    def allows_all(self, principal: str, operation: AccessOperation, group: str) -> bool:
        """See ``allows_all`` above."""
        self.refresh()
        return allows_all(self.rules, principal or ANONYMOUS, operation, group)

    def allows_some(self, principal: str, operation: AccessOperation, group: str) -> bool:
        """See ``allows_some`` above."""
        self.refresh()
        return allows_some(self.rules, principal or ANONYMOUS, operation, group)

    def allows_everywhere(self, principal: str, operation: AccessOperation) -> bool:
        """Whether an operation is allowed on all groups and all of their connectors."""
        self.refresh()
        principal = principal or ANONYMOUS
        mine = [each for each in self.rules if each.principal in ("*", principal)]
        if any(operation in each.operations for each in mine if not each.allows):
            return False
        everywhere = [each for each in mine if each.group == "*" and each.connector in (None, "*")]
        return all(allows(everywhere, principal, operation, each) for each in (Resource("*"), Resource("*", "*")))

    def quota(self, principal: str) -> float | None:
        """Requests per second of a principal; ``None``: the file says nothing about it."""
        self.refresh()
        return self.quotas.get(principal or ANONYMOUS, self.quotas.get("*"))


def _read_file(path: Path) -> tuple[tuple[Rule, ...], dict[str, float]]:
    try:
        found = path.stat()
        if stat.S_IMODE(found.st_mode) & stat.S_IWOTH:
            raise ConfigError("access_rules", path, "a file that not every user may write (chmod o-w)", is_path=True)
        if found.st_size > MAX_BYTES:
            raise ConfigError("access_rules", path, f"a file of at most {MAX_BYTES} bytes", is_path=True)
        text = path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:  # ValueError: not UTF-8, or a NUL in the path
        why = reason(error)
        raise ConfigError("access_rules", path, f"a readable file of rules ({why})", is_path=True) from error
    return parse_rules(text.splitlines(), file=str(path))

"""The outcomes of suites on the broker and on the proxy, side by side. PURE, but for reading pytest's report."""

from __future__ import annotations

import fnmatch
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree

PLACES = ("broker", "proxy")

REASONS: Mapping[str, str] = {}
"""The reason of each known difference, by a pattern of ``suite case``. A difference without one fails the run."""


class Row(NamedTuple):
    """One case of a suite.

    Attributes:
        suite: where the case is from.
        case: pytest's name of it, without the place.
        broker: ``passed``, ``failed``, ``skipped``, or ``not run``.
        proxy: the same.
        note: what failed or why it was skipped, one line.
    """

    suite: str
    case: str
    broker: str
    proxy: str
    note: str

    @property
    def differs(self) -> bool:
        return self.broker != self.proxy

    @property
    def reason(self) -> str:
        """The reason of a known difference; empty if there is none."""
        name = f"{self.suite} {self.case}"
        return next((reason for pattern, reason in REASONS.items() if fnmatch.fnmatchcase(name, pattern)), "")


class Outcome(NamedTuple):
    """The outcome of one test, and why it is not ``passed``."""

    outcome: str
    why: str


def outcomes(report: Path) -> dict[str, Outcome]:
    """The outcome of each test of a JUnit report, by ``module::name``."""
    found: dict[str, Outcome] = {}
    for case in ElementTree.parse(report).iter("testcase"):
        name = f"{case.get('classname', '')}::{case.get('name', '')}"
        for element, outcome in (("failure", "failed"), ("error", "failed"), ("skipped", "skipped")):
            if (why := case.find(element)) is not None:
                found[name] = Outcome(outcome, one_line(why.get("message") or ""))
                break
        else:
            found.setdefault(name, Outcome("passed", ""))
    return found


def one_line(text: str) -> str:
    """The first 100 characters, with the white space as single spaces."""
    text = " ".join(text.split())
    return text if len(text) <= 100 else f"{text[:99]}…"


def split_places(found: Mapping[str, Outcome]) -> dict[str, dict[str, Outcome]]:
    """The outcomes by place, of tests whose parameters name it: ``test_x[broker-range]``. Others are left out."""
    by_place: dict[str, dict[str, Outcome]] = {place: {} for place in PLACES}
    for name, outcome in found.items():
        function, bracket, parameters = name.partition("[")
        for place in PLACES:
            rest, count = re.subn(rf"(^|-){place}(?=-|$)", "", parameters.removesuffix("]"), count=1)
            if bracket and count:
                rest = rest.strip("-")
                by_place[place][f"{function}[{rest}]" if rest else function] = outcome
                break
    return by_place


def rows(suite: str, by_place: Mapping[str, Mapping[str, Outcome]]) -> list[Row]:
    """One row for each case of a suite, in the order of the report."""
    none = Outcome("not run", "")
    found = []
    for name in dict.fromkeys(name for place in PLACES for name in by_place[place]):
        broker, proxy = (by_place[place].get(name, none) for place in PLACES)
        case = name.rpartition("::")[2] if name.count("::") == 1 else name
        found.append(Row(suite, case, broker.outcome, proxy.outcome, proxy.why or broker.why))
    return found


def table(all_rows: Iterable[Row]) -> str:
    """The rows as a table in Markdown, then the number of cases and of differences of each suite."""
    all_rows = list(all_rows)
    lines = ["| suite | case | broker | proxy | reason |", "|---|---|---|---|---|"]
    for row in all_rows:
        reason = row.reason or row.note if row.differs else row.note
        cells = [row.suite, row.case, row.broker, row.proxy, reason]
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    lines.append("")
    for suite in dict.fromkeys(row.suite for row in all_rows):
        of_it = [row for row in all_rows if row.suite == suite]
        same = Counter(row.broker for row in of_it if not row.differs)
        counted = ", ".join(f"{number} {outcome}" for outcome, number in same.items())
        different = [row for row in of_it if row.differs]
        without = sum(not row.reason for row in different)
        lines.append(
            f"{suite}: {len(of_it)} cases; the same on both: {counted or 'none'}; "
            f"different: {len(different)}, {without} without a known reason"
        )
    return "\n".join(lines)

"""Chromium for the tests of the live page: one browser, and pages that note what must not happen."""

from __future__ import annotations

import math
import os
import shutil
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

from connectgroup.client.admin import Admin
from connectgroup.config.rest import RestConfig
from connectgroup.embedding import EmbeddedGroup, worker_group
from connectgroup.group.connect.settings import GroupSettings
from connectgroup.protocol.messages.api import Handler, Request, Response
from connectgroup.protocol.messages.assignment import DelayedUnits
from connectgroup.protocol.messages.cluster import (
    DescribeCoordinatorsRequest,
    DescribeCoordinatorsResponse,
    DescribedCoordinator,
)
from connectgroup.protocol.messages.common import entries, grouped
from connectgroup.protocol.messages.connectors import ConnectorChange, UpdateConnectorsRequest
from connectgroup.protocol.messages.describe import (
    DelayedUntil,
    DescribedConnector,
    DescribedGroup,
    DescribedMember,
    DescribedUnit,
    DescribeRequest,
    DescribeResponse,
    Move,
    Rebalance,
)
from connectgroup.protocol.messages.progress import ConnectorHistory, Progress, UnitEvent
from connectgroup.protocol.units import CONNECTOR, Unit
from connectgroup.rest.events import Rates
from connectgroup.rest.server import RestServer
from tests.coordinator.builders import GROUP
from tests.integration.processes import ATTEMPTS
from tests.volume import SIZE

if TYPE_CHECKING:
    from playwright.async_api import Browser, ConsoleMessage, Page

CHROMIUM: Final = os.environ.get("CHROMIUM", "/usr/bin/chromium")
ARGUMENTS: Final = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",  # containers have little of it
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
)
SCREENSHOTS: Final = Path(__file__).parents[2] / "artifacts" / "page"
TIMEOUT_MS: Final = 120_000

LAYOUT: Final = """
() => {
  const faults = [];
  const all = (selector, inside = document) => [...inside.querySelectorAll(selector)];
  const name = (e) => `${e.tagName.toLowerCase()}#${e.id}.${e.className} ${(e.textContent ?? "").slice(0, 30)}`;
  const rects = (e) => [...e.getClientRects()].filter((r) => r.width > 0 && r.height > 0);
  const inView = (e) => rects(e).some((r) => r.bottom > 0 && r.top < innerHeight);
  const common = (a, b, from, to) => Math.min(a[to], b[to]) - Math.max(a[from], b[from]);
  const overlap = (a, b) => common(a, b, "left", "right") > 1 && common(a, b, "top", "bottom") > 1;
  if (document.documentElement.scrollWidth > innerWidth) {
    const width = document.documentElement.scrollWidth;
    // What is wider than itself: text that does not break has no box of its own.
    const isWide = (e) => e.getBoundingClientRect().left + e.scrollWidth > innerWidth + 1;
    const widest = all("body *").filter(isWide).map(name).slice(-3);
    faults.push(`the page scrolls horizontally, ${width} of ${innerWidth}: ${widest}`);
  }
  for (const parent of all("header, main, #overview, #connectors, #workers, #timeline, .buttons, .card, .sparks")) {
    const children = [...parent.children].filter((e) => inView(e) && getComputedStyle(e).position !== "absolute");
    children.forEach((a, at) => children.slice(at + 1).forEach((b) => {
      const isOver = rects(a).some((one) => rects(b).some((other) => overlap(one, other)));
      if (isOver) faults.push(`${name(a)} overlaps ${name(b)}`);
    }));
  }
  for (const card of all(".card").filter(inView)) {
    const edge = card.getBoundingClientRect();
    for (const e of all("h3, p, ul, .badge, button, a, svg, canvas", card)) {
      const leaves = rects(e).some((r) => r.right > edge.right + 1 || r.left < edge.left - 1);
      if (leaves) faults.push(`${name(e)} leaves its card`);
    }
  }
  for (const e of all("button")) {
    if (rects(e).some((r) => r.width < 24 || r.height < 24)) faults.push(`${name(e)} is smaller than 24 pixels`);
  }
  const cards = all(".connector").filter((e) => rects(e).length);
  const places = cards.map((e) => e.getBoundingClientRect());
  places.slice(1).forEach((r, at) => {
    const before = places[at];
    const isBelow = r.top > before.top + 1 || (Math.abs(r.top - before.top) <= 1 && r.left > before.left);
    if (!isBelow) faults.push(`${name(cards[at + 1])} is before ${name(cards[at])}`);
  });
  const good = cards.findIndex((e) => !e.classList.contains("bad"));
  if (good >= 0 && cards.slice(good).some((e) => e.classList.contains("bad"))) faults.push("a failed one is not first");
  return faults;
}
"""
"""Faults of layout: horizontal scrolling, parts that overlap or leave their card, buttons that are too small (WCAG
2.5.8), failed connectors that are not first."""

BOXES: Final = """
() => {
  const parts = "header, main > *, h2, #overview > div, .card, .card > *, #timeline, td";
  return Object.fromEntries([...document.querySelectorAll(parts)].map((e, at) => {
    const r = e.getBoundingClientRect();
    return [`${at} ${e.tagName} ${e.id} ${e.className}`, [r.left, r.top + scrollY, r.width, r.height]];
  }));
}
"""


@asynccontextmanager
async def chromium() -> AsyncIterator[Browser]:
    """A running browser; skips the test if it, or playwright, is not installed."""
    try:
        from playwright.async_api import Error as PlaywrightError, async_playwright
    except ModuleNotFoundError:
        pytest.skip("playwright is not installed; pip install 'connectgroup[dev]'")
    if shutil.which(CHROMIUM) is None:
        pytest.skip(f"{CHROMIUM} does not exist; apt-get install chromium, or set CHROMIUM to its path")
    async with async_playwright() as playwright:
        for attempts_left in reversed(range(ATTEMPTS)):
            try:
                browser = await playwright.chromium.launch(executable_path=CHROMIUM, args=[*ARGUMENTS], timeout=120_000)
                break
            except PlaywrightError:  # the browser has ended; with the last lines of its log
                if not attempts_left:
                    raise
        yield browser
        await browser.close()


@dataclass
class Tab:
    """One page of a server.

    Attributes:
        page: playwright's page.
        server: the server that it shows.
        urls: of all requests of the page.
        errors: uncaught errors of the page's scripts, and violations of its content security policy.
    """

    page: Page
    server: RestServer
    urls: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)

    async def open(self, *, live: bool = True) -> None:
        """Open the page and, with ``live``, wait for its first table."""
        await self.page.goto(f"{self.server.url}/page")
        if live:
            await self.shows("#live.on")
            await self.shows("#overview dd")

    async def shows(self, selector: str, text: str | None = None) -> None:
        """Wait until an element is visible; with ``text``, one that contains it."""
        found = self.page.locator(selector)
        await (found if text is None else found.filter(has_text=text)).first.wait_for()

    async def lacks(self, selector: str) -> None:
        """Wait until no such element is visible."""
        await self.page.locator(selector).first.wait_for(state="hidden")

    async def count(self, selector: str) -> int:
        return await self.page.locator(f"{selector} >> visible=true").count()

    async def text(self, selector: str) -> str:
        return await self.page.locator(selector).first.inner_text()

    async def focused(self) -> str:
        """The accessible name of the focused element, as far as the page sets it; else its text."""
        found = await self.page.evaluate(
            "(e => e.getAttribute('aria-label') ?? e.id + ' ' + e.textContent)(document.activeElement)"
        )
        return str(found)

    async def tab_to(self, name: str) -> None:
        """Press Tab until the element with this name has the focus."""
        for _ in range(300):
            if name in await self.focused():
                return
            await self.page.keyboard.press("Tab")
        raise AssertionError(f"Tab does not reach {name!r}")

    async def is_too_wide(self) -> bool:
        """Whether the page scrolls horizontally."""
        return bool(await self.page.evaluate("document.documentElement.scrollWidth > innerWidth"))

    async def faults_of_layout(self) -> list[str]:
        """What no rendering of the page may have, whatever its fonts: see ``LAYOUT``."""
        return [str(each) for each in await self.page.evaluate(LAYOUT)]

    async def boxes(self) -> dict[str, list[float]]:
        """Place and size of the parts of the page, in CSS pixels."""
        found: dict[str, list[float]] = await self.page.evaluate(BOXES)
        return found

    async def screenshot(self, name: str, *, whole: bool = False) -> None:
        """Write a screenshot for people to look at; not in a user's run: fifty of them are seconds of a core."""
        if whole:
            await self.page.evaluate("scrollTo(0, 0)")
        if SIZE == "user":
            return
        SCREENSHOTS.mkdir(parents=True, exist_ok=True)
        await self.page.screenshot(path=SCREENSHOTS / f"{name}.png", full_page=whole)


@asynccontextmanager
async def new_tab(browser: Browser, server: RestServer, **options: Any) -> AsyncIterator[Tab]:
    """A page in a browser profile of its own; at the end, it must have had no errors and no foreign requests.

    Args:
        options: of the profile: ``viewport``, ``color_scheme``.
    """
    context = await browser.new_context(**{"viewport": {"width": 1280, "height": 900}, **options})
    context.set_default_timeout(TIMEOUT_MS)
    tab = Tab(await context.new_page(), server)
    tab.page.on("request", lambda request: tab.urls.append(request.url))
    tab.page.on("pageerror", lambda error: tab.errors.append(str(error)))
    tab.page.on("console", lambda message: _note(tab, message))
    try:
        yield tab
    finally:
        await context.close()
    assert tab.errors == []
    assert [url for url in tab.urls if not url.startswith(f"{server.url}/")] == []


def _note(tab: Tab, message: ConsoleMessage) -> None:
    """Note an error on the browser's console; a response with an error status is none."""
    if message.type == "error" and not message.text.startswith("Failed to load resource"):
        tab.errors.append(message.text)


# ---- what the page shows


class Scripted:
    """A coordinator that describes one group, and the coordinators of its log, as the test has set them."""

    def __init__(self, group: DescribedGroup) -> None:
        self.group = group
        self.coordinators = DescribeCoordinatorsResponse(coordinators=(DescribedCoordinator(address="", epoch=1),))

    async def handle(self, request: Request, *, client_host: str, **_: Any) -> Response:
        if isinstance(request, DescribeCoordinatorsRequest):
            return self.coordinators
        assert isinstance(request, DescribeRequest), request
        group, names = self.group, request.connectors
        if names is not None:
            group = replace(group, connectors=tuple(each for each in group.connectors if each.connector in names))
        return DescribeResponse(groups=(group,))


@asynccontextmanager
async def serving_page(admin: Admin, *, rates: Rates | None = None, **config: Any) -> AsyncIterator[RestServer]:
    """A REST server of the group ``GROUP``; ``rates``: see ``RestServer``."""
    server = RestServer(admin, RestConfig(**{"port": 0, "group": GROUP, **config}), rates=rates)
    await server.start()
    try:
        yield server
    finally:
        await server.close()


@asynccontextmanager
async def serving_group(
    workers: int, connectors: Sequence[str], tasks: int
) -> AsyncIterator[tuple[EmbeddedGroup, RestServer]]:
    """A stable group of workers with idle tasks in this process, and its REST server.

    Args:
        tasks: number of tasks of each connector.
    """
    configs = {name: {"connector.class": "idle", "tasks.max": str(tasks)} for name in connectors}
    # A session timeout that a busy machine does not reach; one computation for all workers that join at once.
    settings = GroupSettings(session_timeout_ms=300_000, assignment_interval_ms=100)
    async with worker_group(GROUP, workers=workers, connectors=configs, settings=settings) as group:
        await group.admin.wait_until(GROUP, _all_run, what="running all tasks", timeout_s=120)
        async with serving_page(group.admin) as server:
            yield group, server
        # Otherwise the tasks of each worker that stops would move to the others.
        deletions = tuple(ConnectorChange(connector=name, delete=True) for name in connectors)
        deletion = UpdateConnectorsRequest(group_id=GROUP, changes=deletions)
        await group.coordinator.handle(deletion, client_host="test")
        await group.wait_stable(timeout_s=120)


def _all_run(group: DescribedGroup) -> bool:
    units = [unit for connector in group.connectors for unit in connector.units]
    return group.state == "Stable" and len(units) > len(group.connectors) and all(u.state == "RUNNING" for u in units)


def unit(task: int, state: str = "RUNNING", worker: str = "worker-1", message: str = "") -> DescribedUnit:
    epoch = 7 if worker else -1
    return DescribedUnit(task=task, state=state, member_id=worker, owner_epoch=epoch, message=message)


def troubled_group(
    connector: str = "orders", worker: str = "worker-1", message: str = "no such table"
) -> DescribedGroup:
    """A failed task, a lost worker with delayed units, a connector that is stopped, and four rebalances."""
    now_ms = int(time.time() * 1000)
    units = (unit(CONNECTOR, worker=worker), unit(0, worker=worker), unit(1, "FAILED", worker, message))
    delayed = tuple(unit(task, "UNASSIGNED", "") for task in (2, 3))
    move = Move(connector=connector, task=1, source="worker-2", target=worker, handover_ms=240, downtime_ms=310)
    lost = DelayedUntil(member_id="worker-2", until_ms=now_ms + 50_000, count=2)
    return DescribedGroup(
        group_id=GROUP,
        state="Stable",
        group_epoch=9,
        assignment_epoch=9,
        assignor_name="balanced",
        members=(DescribedMember(member_id=worker, state="STABLE", member_epoch=9, capacity=8, rack="a"),),
        connectors=(
            DescribedConnector(connector=connector, target_state="RUNNING", units=(*units, *delayed)),
            DescribedConnector(connector="archive", target_state="STOPPED", units=(unit(CONNECTOR, "STOPPED", ""),)),
        ),
        delayed=(
            DelayedUnits(member_id="worker-2", left_ms=50_000, units=grouped({Unit(connector, 2), Unit(connector, 3)})),
        ),
        rebalances=(
            Rebalance(
                epoch=3,
                causes=(f"connector {connector} added",),
                started_ms=now_ms - 90_000,
                finished_ms=now_ms - 89_900,
                started=5,
            ),
            Rebalance(epoch=5, causes=("worker-2 joined",), started_ms=now_ms - 60_000),
            Rebalance(
                epoch=7,
                causes=("archive stopped",),
                started_ms=now_ms - 59_000,
                finished_ms=now_ms - 58_000,
                moved=1,
                moves=(move,),
                max_handover_ms=240,
                computed_by=worker,
                assignor="balanced",
            ),
            Rebalance(
                epoch=9,
                causes=("worker-2 lost: session timeout",),
                started_ms=now_ms - 10_000,
                finished_ms=now_ms - 9_950,
                delayed=(lost,),
            ),
        ),
    )


def busy_group(connectors: int, tasks: int, *, text: str = "") -> DescribedGroup:
    """A group whose connectors have rows, a lag and an hour of history; each seventh has failed.

    Args:
        tasks: of each connector.
        text: what strangers choose: part of names, messages and settings.
    """
    now_ms = round(time.time() * 1000)
    made = []
    for number in range(connectors):
        name, fails = f"{text}orders-{number}", number % 7 == 3
        message = f"RETRYING, attempt 3, next in 4 s, last error: {text}relation of orders-{number} does not exist"
        numbers = Progress(
            records_written=1_000_000 + number,
            records_per_minute=600 * (number % 9),
            bytes_lag=2_500_000 * (number % 5),
            files_left=number % 5,
            skipped_files=number % 2,
            dead_letters=number % 3,
            last_dead_letter=f"{text}a.csv, line 7: not a number",
            errors=3 * fails,
            last_record_ms=now_ms - 3_000 * number,
        )
        units = [DescribedUnit(task=-1, member_id="worker-0", owner_epoch=5, state="RUNNING")]
        for task in range(tasks):
            state = "FAILED" if fails and not task else "RUNNING"
            error = message if state == "FAILED" else ""
            worker = f"worker-{(number + task) % 10}"
            units.append(
                DescribedUnit(
                    task=task, member_id=worker, owner_epoch=5, state=state, message=error, progress=(numbers,)
                )
            )
        points = range(60)
        history = ConnectorHistory(
            end_ms=now_ms,
            interval_ms=60_000,
            rows=tuple(round(60 * number * (1 + math.sin((number + point) / 5))) for point in points),
            lag=tuple(max(0, 50 * (number % 5) - point) * 1_000 for point in points),
            errors=tuple(int(fails and point % 20 == 19) for point in points),
        )
        kinds = ("state", "INFO", "runs"), ("error", "ERROR", f"{text}no such table"), ("log", "WARNING", f"{text}slow")
        events = tuple(
            UnitEvent(at_ms=now_ms - 60_000 + at, task=0, member_id="worker-1", kind=kind, level=level, message=said)
            for at, (kind, level, said) in enumerate((*kinds, ("dead_letter", "ERROR", f"{text}a.csv, line 7: bad")))
        )
        config = {"connector.class": "pipeline", "name": name, "source": "files", "sink": "postgres", "x": f"{text}y"}
        made.append(
            DescribedConnector(
                connector=name,
                version=4,
                target_state="RUNNING",
                config=entries(config),
                units=tuple(units),
                history=(history,),
                events=events,
            )
        )
    members = tuple(
        DescribedMember(
            member_id=f"worker-{number}",
            client_host="10.0.0.7",
            host=f"{text}node-{number // 3}",
            member_epoch=5,
            state="STABLE",
            started_ms=now_ms - 4_000_000 * (number + 1),
            memory_bytes=512_000_000 + number,
            assigned=grouped(
                {
                    Unit(each.connector, unit.task)
                    for each in made
                    for unit in each.units
                    if unit.member_id == f"worker-{number}"
                }
            ),
        )
        for number in range(10)
    )
    rebalances = tuple(
        Rebalance(
            epoch=3 + number,
            causes=(f"worker-{number % 10} joined",),
            started_ms=now_ms - 7_000_000 + 100_000 * number + 900_000 * (number // 7),
            finished_ms=now_ms - 7_000_000 + 100_000 * number + 900_000 * (number // 7) + 300,
            moved=number % 11,
            started=number % 4,
            assignor="balanced",
        )
        for number in range(30)
    )
    return DescribedGroup(
        group_id=GROUP,
        state="Stable",
        group_epoch=33,
        assignment_epoch=33,
        assignor_name="balanced",
        members=members,
        connectors=tuple(made),
        rebalances=rebalances,
    )


@asynccontextmanager
async def showing(browser: Browser, coordinator: Handler, **options: Any) -> AsyncIterator[Tab]:
    """A tab with the group of a coordinator; ``options``: see ``new_tab``."""
    async with (
        Admin.local(coordinator) as admin,
        serving_page(admin) as server,
        new_tab(browser, server, **options) as tab,
    ):
        yield tab

"""The live page in Chromium: hostile names, users, secrets, and interrupted streams."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from connectgroup import LocalClient
from connectgroup.client.admin import Admin
from connectgroup.config.secrets import Secrets
from connectgroup.coordinator.runtime import Coordinator
from connectgroup.log.memory import MemoryLog, MemoryStorage
from connectgroup.protocol.messages.api import Request, Response
from connectgroup.rest.server import RestServer
from tests.coordinator.builders import GROUP, serving
from tests.worker.builders import settings

from .browser import Scripted, Tab, busy_group, new_tab, serving_page, showing, troubled_group
from .conftest import rest_server, running_worker
from .test_secrets import CANARY, KeepingConnector

if TYPE_CHECKING:
    from playwright.async_api import Browser

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.xdist_group("chromium"), pytest.mark.long]

IDLE = {"connector.class": "idle"}


HOSTILE = "<img src=x onerror=\"document.title='hacked'\"><script>document.title='hacked'</script>\u202e"


async def test_names_and_messages_are_never_html(browser: Browser) -> None:
    coordinator = Scripted(troubled_group(HOSTILE, HOSTILE, HOSTILE))
    async with showing(browser, coordinator) as tab:
        await tab.open()
        await tab.page.locator(".failure summary").click()
        for number in range(2):
            await tab.page.get_by_role("button", name="Tasks of").nth(number).click()
        await tab.page.locator(".epoch").nth(2).click()
        await tab.page.locator('[data-action="stop"] >> visible=true').click()
        for selector in (".worker h3", ".connector h3", ".failure pre", "#rebalance td", "#confirm-title"):
            assert "<img src=x onerror=" in await tab.text(selector), selector
        assert await tab.page.locator("img, body script").count() == 0
        assert await tab.page.title() == "(1) connectgroup"
        shown = await tab.page.inner_text("body")
        assert "\\u202e" in shown, "what reverses the text after it is made visible"
        assert "\u202e" not in shown
        await tab.screenshot("hostile")


async def test_the_page_of_a_connector_shows_what_strangers_choose_as_text(browser: Browser) -> None:
    group = busy_group(4, 2, text=HOSTILE)
    async with showing(browser, Scripted(group)) as tab:
        await tab.open()
        await tab.page.locator(".connector a").first.click()
        for selector in (
            "#detail-name",
            "#detail .failure .first",
            "#detail-tasks td",
            "#detail-errors td:last-child",
            "#detail-log li",
            "#detail-config td:last-child",
        ):
            await tab.shows(selector, "<img src=x onerror=")
        assert await tab.page.locator("img, body script").count() == 0
        assert await tab.page.title() == "(1) connectgroup"
        await tab.page.get_by_role("button", name="Edit").click()
        await tab.shows("#editor[open]")
        typed = await tab.page.locator("#editor-text").input_value()
        assert "\u202e" not in typed
        assert json.loads(typed)["x"].startswith(HOSTILE), "what is saved is what was there"
        shown = await tab.page.inner_text("body")
        assert "\u202e" not in shown
        await tab.screenshot("hostile-connector")


async def test_the_browser_rejects_html_made_from_text(browser: Browser) -> None:
    """``require-trusted-types-for``: a mistake in a script of the page cannot become an injection."""
    async with showing(browser, Scripted(troubled_group())) as tab:
        await tab.open()
        attempt = "try { document.body.innerHTML = '<b>x</b>' } catch (error) { error.name }"
        async with tab.page.expect_console_message(lambda message: "TrustedHTML" in message.text):
            assert await tab.page.evaluate(attempt) == "TypeError"
        tab.errors.clear()


# ---- users, secrets


async def test_a_reader_signs_in_and_sees_no_buttons(browser: Browser, tmp_path: Path) -> None:
    files = {"users": "admin=correct horse", "readers": "guest=gäste:wort"}
    for name, line in files.items():
        (tmp_path / name).write_text(line)
        (tmp_path / name).chmod(0o600)
    coordinator = Scripted(troubled_group())
    config: dict[str, Any] = {name: tmp_path / name for name in files}
    async with (
        Admin.local(coordinator) as admin,
        serving_page(admin, **config) as server,
        new_tab(browser, server) as tab,
    ):
        await tab.open(live=False)
        await sign_in(tab, "guest", "wrong")
        await tab.shows("#login-error", "User or password is wrong")
        await tab.screenshot("sign-in")
        await sign_in(tab, "guest", "gäste:wort")
        await tab.shows(".connector")
        await tab.shows("#live.on")
        buttons = await tab.page.locator("main button >> visible=true").all_inner_texts()
        assert set(buttons) == {"Tasks"}
        await tab.page.locator(".connector a").first.click()
        await tab.shows("#detail-tasks td")
        assert await tab.count("#detail button:not(#detail-offsets button)") == 0, "only to read the offsets again"
        await tab.page.get_by_role("link", name="All connectors").click()
        await tab.page.locator("#sign-out").click()
        await sign_in(tab, "admin", "correct horse")
        await tab.shows("main button", "Restart worker")
        assert not [url for url in tab.urls if "wort" in url or "horse" in url or "@" in url]
        stored = "JSON.stringify([{...localStorage}, {...sessionStorage}, document.cookie])"
        assert await tab.page.evaluate(stored) == '[{},{},""]'


async def test_a_user_sees_only_the_buttons_that_the_rules_of_access_allow(browser: Browser, tmp_path: Path) -> None:
    (tmp_path / "users").write_text("ann=secret word")
    (tmp_path / "users").chmod(0o600)
    group = f"group {GROUP}"
    (tmp_path / "rules").write_text(
        f"allow ann describe {group}\n"
        f"allow ann describe {group} connector *\n"
        f"allow ann alter {group} connector orders-1\n"
    )
    config: dict[str, Any] = {"users": tmp_path / "users", "access_rules": tmp_path / "rules"}
    async with (
        Admin.local(Scripted(busy_group(2, 2))) as admin,
        serving_page(admin, **config) as server,
        new_tab(browser, server) as tab,
    ):
        await tab.open(live=False)
        await sign_in(tab, "ann", "secret word")
        await tab.shows('.connector[data-connector="orders-1"] button', "Pause")
        assert await tab.count('.connector[data-connector="orders-0"] .change') == 0
        assert await tab.count(".worker .drain") == await tab.count(".worker .restart") == 0
        await tab.shows("#new-connector")
        await tab.page.get_by_role("link", name="orders-1").click()
        await tab.shows('#detail [data-action="edit"]')
        assert await tab.count('#detail [data-action="delete"]') == 0, "to alter is not to delete"
        await tab.page.get_by_role("link", name="All connectors").click()
        await tab.page.get_by_role("link", name="orders-0").click()
        await tab.shows("#detail-tasks td", "orders-0-1")
        assert await tab.count("#detail button:not(#detail-offsets button)") == 0, "only to read the offsets again"


async def test_the_page_goes_on_after_a_sign_in_that_two_streams_have_asked_for(
    browser: Browser, tmp_path: Path
) -> None:
    """The stream begins again while the dialog is open: after a tab was in the background, say."""
    (tmp_path / "users").write_text("admin=correct horse")
    (tmp_path / "users").chmod(0o600)
    async with (
        Admin.local(Scripted(troubled_group())) as admin,
        serving_page(admin, users=tmp_path / "users") as server,
        new_tab(browser, server) as tab,
    ):
        await tab.open(live=False)
        await sign_in(tab, "admin", "correct horse")
        await tab.shows("#live.on")
        await tab.page.locator("#sign-out").click()
        await tab.shows("#login")
        async with tab.page.expect_response(lambda response: response.status == 401):
            await tab.page.evaluate("document.getElementById('group').dispatchEvent(new Event('change'))")
        await tab.lacks(".connector")
        await sign_in(tab, "admin", "correct horse")
        await tab.shows(".connector")


async def sign_in(tab: Tab, user: str, password: str) -> None:
    await tab.page.get_by_label("User").fill(user)
    await tab.page.get_by_label("Password").fill(password)
    await tab.page.get_by_role("button", name="Sign in").click()


async def test_the_page_and_its_stream_have_no_secret(
    browser: Browser, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CANARY_URL", f"db://{CANARY}/x")
    KeepingConnector.started = []
    config = {**IDLE, "url": "${env:CANARY_URL}", "api.key": f"{CANARY}-key", "fails": "yes"}
    secrets = Secrets(env=("CANARY_*",))
    async with (
        serving() as coordinator,
        rest_server(coordinator) as api,
        running_worker(api, tmp_path, lambda _: KeepingConnector, secrets=secrets),
    ):
        await api.admin.add_connector(GROUP, "c", config)
        async with new_tab(browser, api.server) as tab:
            await tab.open()
            await tab.shows(".failure", "cannot connect to [hidden]")
            await tab.page.get_by_role("button", name="Tasks of c").click()
            assert CANARY not in await tab.page.content()
        assert KeepingConnector.started, "the task had the secret"
        async with api.http.stream("GET", f"/groups/{GROUP}/events") as response:
            async for line in response.aiter_lines():
                assert CANARY not in line
                if "[hidden]" in line:
                    break


# ---- the stream


class Switch:
    """Passes requests to the coordinator of the moment."""

    def __init__(self, coordinator: Coordinator) -> None:
        self.coordinator = coordinator

    async def handle(self, request: Request, **more: Any) -> Response:
        return await self.coordinator.handle(request, **more)


async def test_the_page_continues_after_restarts_of_coordinator_and_server(browser: Browser) -> None:
    storage = MemoryStorage()
    first, second = Coordinator(MemoryLog(storage), settings()), Coordinator(MemoryLog(storage), settings())
    switch = Switch(first)
    await first.start()
    async with Admin([LocalClient(switch)], retry_for_s=0) as admin:
        await admin.add_connector(GROUP, "alpha", IDLE)
        async with serving_page(admin) as server, new_tab(browser, server) as tab:
            await tab.open()
            await tab.shows(".connector", "alpha")
            await first.close()
            await tab.shows("#notice", "What is shown may be old")
            assert await tab.count(".connector") == 1, "the last known state stays"
            await tab.screenshot("coordinator-down")
            switch.coordinator = second
            await second.start()
            await tab.lacks("#notice")
            await admin.add_connector(GROUP, "beta", IDLE)
            await tab.shows(".connector", "beta")
            await server.close()
            await tab.shows("#live", "Reconnecting")
            await admin.delete_connector(GROUP, "alpha")
            again = RestServer(admin, server.config.model_copy(update={"port": server.port}))
            await again.start()
            await tab.shows("#live.on")
            await tab.lacks('.connector[data-connector="alpha"]')
            assert [url for url in tab.urls if url.endswith("/page")] == [f"{server.url}/page"], "not loaded again"
            await again.close()
    await second.close()


async def test_the_page_waits_for_a_group_that_does_not_exist_yet(browser: Browser) -> None:
    async with (
        serving() as coordinator,
        Admin.local(coordinator) as admin,
        serving_page(admin) as server,
        new_tab(browser, server) as tab,
    ):
        await tab.open(live=False)
        await tab.shows("#notice", "no such group")
        await admin.add_connector(GROUP, "alpha", IDLE)
        await tab.shows(".connector", "alpha")
        await tab.lacks("#notice")

"""The REST server's access rules: web pages, users, readers, rates, allowed classes, TLS."""

from __future__ import annotations

import asyncio
import shutil
import ssl
from pathlib import Path

import httpx
import pytest

from connectgroup.client.admin import Admin
from connectgroup.config.rest import RestConfig, read_users
from connectgroup.errors import ConfigError
from connectgroup.rest import guard
from connectgroup.rest.guard import RateLimit
from connectgroup.rest.server import RestServer
from connectgroup.telemetry.metrics import values_of
from tests.certificates import create_certificates
from tests.coordinator.builders import GROUP, serving

from .conftest import Api, rest_server

IDLE = {"connector.class": "idle"}


@pytest.mark.parametrize(
    ("headers", "field"),
    [
        ({"Host": "evil.example"}, "Host"),
        ({"Host": ""}, "Host"),
        ({"Host": "127.0.0.1.evil.example:8083"}, "Host"),
        ({"Origin": "http://evil.example"}, "Origin"),
        ({"Origin": "null"}, "Origin"),
        *(
            ({"Host": host}, "Host")
            for host in (
                *(
                    "localhost/evil",
                    "localhost?a",
                    "localhost#a",
                    "localhost\\evil",
                    "evil@localhost",
                    "localhost@evil",
                ),
                *(
                    "localhost.",
                    "localhost..",
                    ".localhost",
                    "localhost:",
                    "localhost:x",
                    "localhost:0",
                    "localhost:65536",
                ),
                *(
                    "localhost:80:80",
                    "localhost,evil",
                    "localhost evil",
                    "//localhost",
                    "http://localhost",
                    "lоcalhost",
                ),
                *(
                    "127.1",
                    "0x7f.0.0.1",
                    "2130706433",
                    "127.0.0.1.",
                    "::1",
                    "[::1",
                    "[::1]x",
                    "[::1%25lo]",
                    "[127.0.0.1]",
                ),
                *("[::ffff:127.0.0.1]", "[::2]", "[]", "a.localhost", "localhost%00", "user:pw@localhost:80"),
            )
        ),
        *(
            ({"Host": "localhost:8083", "Origin": origin}, "Origin")
            for origin in (
                *(
                    "http://localhost",
                    "http://localhost:3000",
                    "http://127.0.0.1:8083",
                    "http://[::1]:8083",
                    "localhost:8083",
                ),
                *(
                    "http://localhost:8083/",
                    "http://localhost:8083/a",
                    "http://a@localhost:8083",
                    "http://localhost.:8083",
                ),
                *(
                    "ftp://localhost:8083",
                    "file://",
                    "chrome-extension://localhost:8083",
                    "null, http://localhost:8083",
                ),
                *("http://localhost:8083 http://evil", "//localhost:8083", "http:localhost:8083", "", "http://"),
            )
        ),
        # The origin of another server, at the port of https.
        *(({"Host": host, "Origin": f"https://{host}"}, "Origin") for host in ("localhost", "127.0.0.1", "[::1]")),
        ({"Host": "evil.example", "X-Forwarded-Host": "localhost", "Forwarded": "host=localhost"}, "Host"),
    ],
)
async def test_requests_of_web_pages_are_rejected(api: Api, headers: dict[str, str], field: str) -> None:
    """DNS rebinding and cross-site requests (reliability, section 5, browser)."""
    encoded = {name: value.encode() for name, value in headers.items()}
    assert (await api("GET", "/connectors", 403, headers=encoded)).startswith(f"{field}: got ")


async def test_requests_with_several_hosts_or_origins_are_rejected(api: Api) -> None:
    for fields in (
        "Host: localhost\r\nHost: localhost",
        "Host: localhost\r\nOrigin: http://localhost\r\norigin: null",
        "A: b",
    ):
        head = f"GET /connectors HTTP/1.1\r\n{fields}\r\nConnection: close\r\n\r\n"
        assert (await _raw(api, head)).split()[1] in (b"400", b"403"), fields
    for target in ("http://evil.example/connectors", "http://localhost/connectors", "evil.example:80"):
        head = f"GET {target} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
        assert (await _raw(api, head)).split()[1] == b"400", target


async def _raw(api: Api, head: str) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", api.server.port)
    writer.write(head.encode())
    received = await reader.read()
    writer.close()
    return received


async def test_an_origin_of_a_reverse_proxy_has_an_allowed_name_and_its_port() -> None:
    allowed = ("connect.example.org", "other.example.org:8443")
    async with serving() as coordinator, rest_server(coordinator, allowed_hosts=allowed) as api:
        for host, origin, status in (
            ("connect.example.org", "https://connect.example.org", 200),
            ("localhost:8083", "https://connect.example.org", 200),
            ("localhost:8083", "https://Connect.Example.org:443", 200),
            ("localhost:8083", "https://other.example.org:8443", 200),
            ("other.example.org", "https://other.example.org", 200),
            ("localhost:8083", "https://other.example.org", 403),
            ("localhost:8083", "https://connect.example.org:3000", 403),
            ("connect.example.org", "https://connect.example.org:3000", 403),
            ("connect.example.org", "http://localhost", 403),
        ):
            response = await api.http.get("/connectors", headers={"Host": host, "Origin": origin})
            assert response.status_code == status, (host, origin, response.text)


async def test_requests_by_a_name_of_this_machine_are_served(api: Api) -> None:
    for name in ("localhost", "LOCALHOST:8083", "127.0.0.1:1", "[::1]:8083", "[0:0::1]:8083"):
        response = await api.http.get("/connectors", headers={"Host": name, "Origin": f"http://{name}"})
        assert response.status_code == 200
        assert "access-control-allow-origin" not in response.headers


@pytest.fixture
def users(tmp_path: Path) -> Path:
    path = tmp_path / "users"
    path.write_text("# operators\nann=se=cret\n")
    path.chmod(0o600)
    return path


async def test_basic_authentication(users: Path) -> None:
    async with serving() as coordinator, rest_server(coordinator, users=users) as api:
        for auth in (None, ("ann", "wrong"), ("bob", "se=cret"), ("", "")):
            response = await api.http.get("/connectors", auth=auth)
            assert response.status_code == 401
            assert response.headers["www-authenticate"].startswith("Basic ")
            assert response.json()["error_code"] == 401
        for value in ("Basic", "Basic %%%", "Bearer abc", "Basic /w=="):
            assert (await api.http.get("/", headers={"Authorization": value})).status_code == 401
        assert (await api.http.get("/connectors", auth=("ann", "se=cret"))).status_code == 200


@pytest.fixture
def readers(tmp_path: Path) -> Path:
    path = tmp_path / "readers"
    path.write_text("rob=read-only\n")
    path.chmod(0o600)
    return path


async def test_readers_may_only_read(users: Path, readers: Path) -> None:
    async with serving() as coordinator, rest_server(coordinator, users=users, readers=readers) as api:
        body = {"name": "c", "config": IDLE}
        reader, admin = ("rob", "read-only"), ("ann", "se=cret")
        response = await api.http.post("/connectors", json=body, auth=reader)
        assert (response.status_code, response.json()["message"]) == (
            403,
            "user rob: got POST; allowed: GET (a reader)",
        )
        assert (await api.http.post("/connectors", json=body, auth=admin)).status_code == 201
        for method, path in (
            ("PUT", "/connectors/c/pause"),
            ("DELETE", "/connectors/c"),
            ("PATCH", "/connectors/c/config"),
            ("PUT", "/admin/loggers/root"),
            ("DELETE", "/groups/workers"),
        ):
            assert (await api.http.request(method, path, json={}, auth=reader)).status_code == 403
        for auth in (reader, admin):
            assert (await api.http.get("/connectors", auth=auth)).json() == ["c"]
        assert (await api.http.get("/connectors", auth=("rob", "se=cret"))).status_code == 401


async def test_a_name_is_a_user_or_a_reader(users: Path) -> None:
    async with serving() as coordinator, Admin.local(coordinator) as admin:
        with pytest.raises(ConfigError, match="readers: got 'ann'; allowed: names that the file"):
            await RestServer(admin, RestConfig(port=0, users=users, readers=users)).start()


async def test_readers_alone_require_authentication(readers: Path) -> None:
    async with serving() as coordinator, rest_server(coordinator, readers=readers) as api:
        assert (await api.http.get("/connectors")).status_code == 401
        assert (await api.http.get("/connectors", auth=("rob", "read-only"))).status_code == 200


def test_a_rate_limit_admits_a_burst_of_one_second_and_then_the_rate() -> None:
    now = 0.0
    limit = RateLimit(10, clock=lambda: now)
    assert [limit.admits("a") for _ in range(12)] == [True] * 10 + [False] * 2
    assert limit.admits("b"), "each address has its own limit"
    now = 0.1
    assert [limit.admits("a") for _ in range(2)] == [True, False]
    now = 100.0
    assert [limit.admits("a") for _ in range(11)] == [True] * 10 + [False]


def test_addresses_that_a_rate_limit_remembers_have_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "MAX_ADDRESSES", 5)
    limit = RateLimit(1, clock=lambda: 0.0)
    assert [limit.admits(address) for address in "abcde"] == [True] * 5
    assert not limit.admits("a")
    assert limit.admits("f"), "b is forgotten: it was idle longest"
    assert [limit.admits(address) for address in "ab"] == [False, True]


async def test_requests_beyond_the_rate_are_429() -> None:
    async with serving() as coordinator, rest_server(coordinator, requests_per_second=1) as api:
        responses = await asyncio.gather(*(api.http.get("/") for _ in range(40)))
        refused = [response for response in responses if response.status_code == 429]
        assert responses[0].status_code in (200, 429)
        assert refused
        assert refused[0].headers["retry-after"] == "1"
        assert refused[0].json()["error_code"] == 429


async def test_user_above_its_quota_is_refused_and_others_are_served(
    users: Path, readers: Path, tmp_path: Path
) -> None:
    """By the option and the lines of the rules that are also the quotas of the protocol."""
    rules = tmp_path / "rules"
    rules.write_text("quota rob 100000\nallow * all group * connector *\n")
    async with (
        serving() as coordinator,
        rest_server(
            coordinator, users=users, readers=readers, access_rules=rules, requests_per_second_per_principal=1
        ) as api,
    ):
        ann, rob = ("ann", "se=cret"), ("rob", "read-only")

        async def statuses(user: tuple[str, str], path: str = "/connectors") -> set[int]:
            responses = await asyncio.gather(*(api.http.get(path, auth=user) for _ in range(20)))
            refused.extend(each for each in responses if each.status_code == 429)
            return {each.status_code for each in responses}

        refused: list[httpx.Response] = []
        for _ in range(50):
            if 429 in await statuses(ann):
                break
        assert refused[0].headers["retry-after"] == "1"
        assert refused[0].json() == {
            "error_code": 429,
            "message": "ann: too many requests; allowed: 1 per second, the quota of this user; retry after one second",
        }
        assert await statuses(rob) == {200}, "its own quota"
        assert await statuses(ann, "/page") == {200}, "needs no user"
        await asyncio.sleep(int(refused[0].headers["retry-after"]))
        assert (await api.http.get("/connectors", auth=ann)).status_code == 200
        [values] = [
            found for labels, found in values_of("principal") if labels == {"server": "rest", "principal": "ann"}
        ]
        assert float(values["throttled-request-total"] or 0) >= len(refused)


async def test_clients_without_a_user_share_the_quota_of_anonymous() -> None:
    async with serving() as coordinator, rest_server(coordinator, requests_per_second_per_principal=1) as api:
        for _ in range(50):
            responses = await asyncio.gather(*(api.http.get("/connectors") for _ in range(20)))
            if refused := [each for each in responses if each.status_code == 429]:
                break
        assert "ANONYMOUS: too many requests; allowed: 1 per second" in refused[0].json()["message"]


async def test_only_allowed_connector_classes_are_listed_described_and_used() -> None:
    async with serving() as coordinator, rest_server(coordinator, connector_classes=("pipeline",)) as api:
        assert [plugin["class"] for plugin in await api("GET", "/connector-plugins", 200)] == ["pipeline"]
        for method, path, status, body in (
            ("POST", "/connectors", 400, {"name": "c", "config": IDLE}),
            ("PUT", "/connectors/c/config", 400, IDLE),
            ("GET", "/connector-plugins/idle/config", 404, None),
            ("PUT", "/connector-plugins/idle/config/validate", 404, IDLE),
        ):
            assert "idle" in await api(method, path, status, body)
        await api.admin.add_connector(GROUP, "c", IDLE)
        assert "connector.class: got 'idle'; allowed: pipeline" in await api(
            "PATCH", "/connectors/c/config", 400, {"tasks.max": "2"}
        )


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "0"])
async def test_another_address_requires_authentication_and_tls(host: str, users: Path) -> None:
    async with serving() as coordinator, Admin.local(coordinator) as admin:
        for config in (RestConfig(host=host, port=0), RestConfig(host=host, port=0, users=users)):
            with pytest.raises(ConfigError, match=r"host: got .*; allowed: a loopback address .* \(TLS\)"):
                await RestServer(admin, config).start()


def test_a_users_file_that_others_can_read_is_refused(users: Path) -> None:
    users.chmod(0o644)
    with pytest.raises(ConfigError, match="accessible to its owner only"):
        read_users(users)


@pytest.mark.parametrize("content", ["", "# nobody\n", "ann\n", "ann=\n", "=x\n", "ann=1\nann=2\n", "a:b=c\n"])
def test_a_users_file_without_valid_lines_is_refused(users: Path, content: str) -> None:
    users.write_text(content)
    with pytest.raises(ConfigError, match="users: got"):
        read_users(users)


@pytest.fixture
def certificate(tmp_path: Path) -> tuple[Path, Path]:
    """A self-signed certificate for 127.0.0.1, and its key."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl creates the certificate")
    create_certificates(tmp_path, "server")
    return tmp_path / "server.pem", tmp_path / "server.key"


async def test_every_address_is_served_with_authentication_and_tls(users: Path, certificate: tuple[Path, Path]) -> None:
    config = RestConfig(host="0.0.0.0", port=0, users=users, certificate=certificate[0], key=certificate[1])
    async with serving() as coordinator, Admin.local(coordinator) as admin:
        server = RestServer(admin, config)
        await server.start()
        try:
            assert server.url == f"https://0.0.0.0:{server.port}"
            trusted = ssl.create_default_context(cafile=str(certificate[0]))
            url = f"https://127.0.0.1:{server.port}"
            async with httpx.AsyncClient(base_url=url, verify=trusted, auth=("ann", "se=cret")) as http:
                assert (await http.get("/connectors")).json() == []
            async with httpx.AsyncClient(base_url=url, verify=trusted) as http:
                assert (await http.get("/connectors")).status_code == 401
        finally:
            await server.close()


def test_a_certificate_needs_its_key(tmp_path: Path) -> None:
    for given, missing in (("certificate", "key"), ("key", "certificate")):
        with pytest.raises(ConfigError, match=f"^{missing}: missing; allowed: certificate and key together"):
            RestConfig.model_validate({given: tmp_path / "file.pem"})


async def test_a_certificate_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    async with serving() as coordinator, Admin.local(coordinator) as admin:
        config = RestConfig(port=0, certificate=tmp_path / "nosuch.pem", key=tmp_path / "nosuch.key")
        with pytest.raises(ConfigError, match=r"certificate: got .*; allowed: PEM files of a certificate and its key"):
            await RestServer(admin, config).start()


async def test_certificate_is_read_again_when_its_files_change(certificate: tuple[Path, Path], tmp_path: Path) -> None:
    config = RestConfig(port=0, certificate=certificate[0], key=certificate[1])
    (tmp_path / "new").mkdir()
    create_certificates(tmp_path / "new", "renewed")
    async with serving() as coordinator, Admin.local(coordinator) as admin:
        server = RestServer(admin, config)
        await server.start()
        try:
            old, new = (
                ssl.create_default_context(cafile=str(each)) for each in (certificate[0], tmp_path / "new/renewed.pem")
            )
            async with httpx.AsyncClient(base_url=server.url, verify=old) as first:
                assert (await first.get("/connectors")).status_code == 200
                for kind, own in zip(("pem", "key"), certificate, strict=True):
                    (tmp_path / f"new/renewed.{kind}").replace(own)
                async with httpx.AsyncClient(base_url=server.url, verify=new) as second, asyncio.timeout(60):
                    while True:
                        try:
                            assert (await second.get("/connectors")).status_code == 200
                            break
                        except httpx.ConnectError:
                            await asyncio.sleep(0.05)
                assert (await first.get("/connectors")).status_code == 200, "its connection is still open"
        finally:
            await server.close()

"""The HTTP servers of commands: the REST API with the live page, and the metrics of a process."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager
from importlib import import_module
from typing import TYPE_CHECKING, Any

from ..errors import ConfigError, PluginError
from .arguments import allowed_paths_of, secrets_of
from .errors import port_option, renamed

if TYPE_CHECKING:
    from ..client.admin import Admin
    from ..rest.events import Rates

Serving = Callable[[], AbstractAsyncContextManager[str]]
"""A server that is ready: it serves in this context, which yields its URL."""


def print_rest(url: str) -> None:
    """Print where the REST API and the live page are."""
    print(f"REST at {url}", flush=True)
    print(f"page at {url}/page", flush=True)


@contextlib.asynccontextmanager
async def rest_server(
    admin: Admin, options: argparse.Namespace, port: int, *, rates: Rates | None = None
) -> AsyncIterator[Serving]:
    """Make the REST API ready, before anything else starts: its settings and files are checked, its port is taken.

    Raises:
        ConfigError: a setting or a file cannot be used, or a connector class that clients may use is not installed.
        TransportError: the port is in use, or the host is not an address of this machine.
    """
    from ..plugins import available

    installed = available("connectors")
    for name in options.rest_connector_classes or ():
        if name not in installed:
            raise ConfigError(
                f"{options.rest_prefix}connector-class",
                name,
                ", ".join(installed) or "none (connectors are not installed)",
            )
    # Both would have the port until they listen.
    if port and (options.rest_host, port) == (getattr(options, "host", None), getattr(options, "port", None)):
        raise ConfigError("--rest-port", port, "another one than --port, or 0 for any")
    values = {
        "host": options.rest_host,
        "port": port,
        "group": options.group,
        "users": options.rest_users,
        "certificate": options.rest_certificate,
        "key": options.rest_key,
        "allowed_hosts": tuple(options.rest_allowed_hosts or ()),
        "readers": options.rest_readers,
        "access_rules": options.access_rules,
        "audit_log": options.audit_log,
        "connector_classes": tuple(options.rest_connector_classes or ()),
        "requests_per_second": options.rest_requests_per_second,
        "requests_per_second_per_principal": options.requests_per_second_per_principal,
        "max_connections": options.rest_max_connections,
        "max_connections_per_address": options.rest_max_connections_per_address,
        "idle_timeout_s": options.rest_idle_timeout_s,
        "allowed_paths": allowed_paths_of(options),
        **_known_secrets(options),
        "new_group": getattr(options, "new_group", False),
    }
    names = {field: f"rest_{field}" for field in values if hasattr(options, f"rest_{field}")}
    option = "--rest-port" if hasattr(options, "rest_port") else "--port"
    async with _http_server(admin, values, names, option, rates) as serving:
        yield serving


def _known_secrets(options: argparse.Namespace) -> dict[str, Any]:
    """The secrets that connectors may refer to. ``up`` gives its own to all workers; others know what they are told."""
    secrets = secrets_of(options)
    if not options.gives_secrets and not secrets.env and not secrets.paths:
        return {}
    return {"secret_env": secrets.env, "secret_paths": secrets.paths}


@contextlib.asynccontextmanager
async def metrics_server(port: int | None) -> AsyncIterator[str]:
    """Serve the metrics of this process on the loopback address; yields the URL, empty without a port."""
    if port is None:
        yield ""
        return
    ready = _http_server(None, {"port": port}, {"port": "metrics_port"}, "--metrics-port")
    async with ready as serving, serving() as url:
        yield f"{url}/metrics"


@contextlib.asynccontextmanager
async def _http_server(
    admin: Admin | None, values: dict[str, Any], names: Mapping[str, str], option: str, rates: Rates | None = None
) -> AsyncIterator[Serving]:
    """A ``RestServer`` with these settings, which has its port.

    Args:
        option: of the port.
        names: of the options for them, as far as these have other names.
    """
    from ..config.base import checked
    from ..config.rest import RestConfig

    try:
        from ..rest.server import RestServer

        if admin is None:
            import_module("..rest.metrics", __package__)  # fails now, and not at each scrape
    except ModuleNotFoundError as error:
        what = "the REST API" if admin is not None else "--metrics-port"
        raise PluginError(f"{what} requires {error.name}; allowed: pip install 'connectgroup[rest]'") from error

    @contextlib.contextmanager
    def named() -> Iterator[None]:
        try:
            with port_option(option):
                yield
        except ConfigError as error:
            raise renamed(error, names.get(error.field, error.field)) from error

    @contextlib.asynccontextmanager
    async def serving() -> AsyncIterator[str]:
        try:
            with named():
                await server.start()
            yield server.url
        finally:
            await server.close()

    with named():
        server = RestServer(admin, checked(RestConfig, values), rates=rates)
        await server.open()
    try:
        yield serving
    finally:
        server.release()

"""ApiVersions and FindCoordinator, as far as this coordinator serves them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiVersionsRequest:
    """Which APIs do you serve? The names are sent from version 3 on."""

    client_software_name: str = ""
    client_software_version: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiVersion:
    """One API and the versions of it that are served."""

    api_key: int
    min_version: int
    max_version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiVersionsResponse:
    """The APIs served here."""

    error_code: int = 0
    api_keys: tuple[ApiVersion, ...] = ()
    throttle_time_ms: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class FindCoordinatorRequest:
    """Who coordinates this group? ``key`` up to version 3, ``coordinator_keys`` from version 4 on."""

    key: str = ""
    key_type: int = 0
    coordinator_keys: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundCoordinator:
    """One group's coordinator."""

    key: str
    node_id: int
    host: str
    port: int
    error_code: int = 0
    error_message: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FindCoordinatorResponse:
    """The coordinator: the single fields up to version 3, ``coordinators`` from version 4 on."""

    throttle_time_ms: int = 0
    error_code: int = 0
    error_message: str | None = None
    node_id: int = -1
    host: str = ""
    port: int = -1
    coordinators: tuple[FoundCoordinator, ...] = ()

"""TLS and SASL to Kafka's brokers, by librdkafka's settings.

librdkafka fetches records; the requests about the group go over connections of this library. One set of settings serves
both, so only settings are allowed that both can obey:

    security.protocol                       plaintext, ssl, sasl_plaintext, sasl_ssl
    ssl.ca.location                         PEM file of the authorities; by default those of the system
    ssl.certificate.location, ssl.key.location, ssl.key.password    the client's certificate (mutual TLS)
    ssl.endpoint.identification.algorithm   https (default) or none: whether the certificate must name the host
    enable.ssl.certificate.verification     true (default) or false
    sasl.mechanism, sasl.mechanisms         PLAIN, SCRAM-SHA-256, SCRAM-SHA-512
    sasl.username, sasl.password

A coordinator of connectgroup that is not one of the brokers gets TLS by the same settings. ``ssl://HOST:PORT`` and
``plaintext://HOST:PORT`` say whether it has TLS; otherwise it has if the brokers have. Its credentials are those that
any client of this user finds (``transport.credentials``).

Source: librdkafka's CONFIGURATION.md; KIP-12, KIP-43, KIP-84.
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

from ..checks import parse_address
from ..errors import ConfigError
from ..transport.access import client_context, load_authorities, load_certificate
from ..transport.credentials import MECHANISMS, Credentials

PROTOCOLS: Final = ("plaintext", "ssl", "sasl_plaintext", "sasl_ssl")
SETTINGS: Final = (
    *("security.protocol", "enable.ssl.certificate.verification", "ssl.endpoint.identification.algorithm"),
    *("ssl.ca.location", "ssl.certificate.location", "ssl.key.location", "ssl.key.password"),
    *("sasl.mechanism", "sasl.mechanisms", "sasl.username", "sasl.password"),
)
CERTIFICATE, KEY = "ssl.certificate.location", "ssl.key.location"


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerSecurity:
    """How a connection to a broker is protected.

    Attributes:
        protocol: of ``PROTOCOLS``.
        tls: ``None`` without TLS.
        credentials: ``None`` without SASL.
        mechanism: the SASL mechanism.
    """

    protocol: str = "plaintext"
    tls: ssl.SSLContext | None = None
    credentials: Credentials | None = field(default=None, repr=False)
    mechanism: str = ""


PLAINTEXT: Final = BrokerSecurity()


class CoordinatorAddress(NamedTuple):
    """A coordinator of connectgroup that is not one of the brokers, and how connections to it are protected.

    Attributes:
        others: host and port of those that share its log; each says which one serves (FindCoordinator).
    """

    host: str
    port: int
    security: BrokerSecurity = PLAINTEXT
    others: tuple[tuple[str, int], ...] = ()


def coordinator_of(address: str, settings: Mapping[str, Any]) -> CoordinatorAddress:
    """The coordinator at an address, ``host:port`` with or without ``ssl://`` or ``plaintext://``; several with commas.

    Args:
        settings: those that ``check_security`` accepts.

    Raises:
        ConfigError: the address, or a file that the settings name, cannot be used.
    """
    protocol, (host, port), *others = _parse_coordinator(address, settings)
    tls = _tls(settings) if protocol == "ssl" else None
    return CoordinatorAddress(host, port, BrokerSecurity(protocol=protocol, tls=tls), tuple(others))


def _parse_coordinator(
    address: str, settings: Mapping[str, Any]
) -> tuple[str, tuple[str, int], *tuple[tuple[str, int], ...]]:
    scheme, separator, rest = address.rpartition("://")
    if separator and scheme.lower() not in ("ssl", "plaintext"):
        raise ConfigError("coordinator", address, "host:port, ssl://host:port or plaintext://host:port")
    of_brokers = "ssl" if _choice(settings, "security.protocol", PROTOCOLS).endswith("ssl") else "plaintext"
    first, *others = (parse_address("coordinator", each.strip()) for each in rest.split(","))
    return scheme.lower() or of_brokers, first, *others


def check_security(settings: Mapping[str, Any], coordinator: str | None = None) -> None:
    """Check the settings of TLS and SASL, without the files that they name.

    Args:
        coordinator: the address of a coordinator that is not one of the brokers, if there is one.

    Raises:
        ConfigError: one of them is invalid, missing, or not supported; the field begins with ``fetch.``.
    """
    for name in settings:
        if name.startswith(("ssl.", "sasl.", "enable.ssl", "security.")) and name not in SETTINGS:
            value = "a value"  # it may be a secret
            raise ConfigError(f"fetch.{name}", value, f"of the settings of TLS and SASL, {', '.join(SETTINGS)}")
    protocol = _choice(settings, "security.protocol", PROTOCOLS)
    _choice(settings, "enable.ssl.certificate.verification", ("true", "false"))
    _choice(settings, "ssl.endpoint.identification.algorithm", ("https", "none"))
    if (CERTIFICATE in settings) != (KEY in settings):
        given, missing = (CERTIFICATE, KEY) if CERTIFICATE in settings else (KEY, CERTIFICATE)
        raise ConfigError(f"fetch.{given}", settings[given], f"together with {missing}")
    needs_sasl = protocol.startswith("sasl_")
    tls_to_coordinator = coordinator is not None and _parse_coordinator(coordinator, settings)[0] == "ssl"
    for name in settings:
        if name.startswith("sasl.") and not needs_sasl:
            raise ConfigError(f"fetch.{name}", "a value", "with security.protocol sasl_plaintext or sasl_ssl only")
        if name.startswith("ssl.") and not (protocol.endswith("ssl") or tls_to_coordinator):
            allowed = "with security.protocol ssl or sasl_ssl, or a coordinator ssl://host:port only"
            raise ConfigError(f"fetch.{name}", "a value", allowed)
    if needs_sasl:
        if _mechanism(settings) not in MECHANISMS:
            value = _mechanism(settings) or "''"
            raise ConfigError("fetch.sasl.mechanism", value, f"one of {', '.join(MECHANISMS)}")
        for name in ("sasl.username", "sasl.password"):
            if not settings.get(name):
                raise ConfigError(f"fetch.{name}", "''", f"a value, because security.protocol is {protocol}")


def broker_security(settings: Mapping[str, Any]) -> BrokerSecurity:
    """What settings that ``check_security`` accepts mean for a connection.

    Raises:
        ConfigError: a file that they name cannot be used.
    """
    protocol = _choice(settings, "security.protocol", PROTOCOLS)
    credentials = None
    if protocol.startswith("sasl_"):
        credentials = Credentials(str(settings["sasl.username"]), str(settings["sasl.password"]))
    return BrokerSecurity(
        protocol=protocol,
        tls=_tls(settings) if protocol.endswith("ssl") else None,
        credentials=credentials,
        mechanism=_mechanism(settings),
    )


def _tls(settings: Mapping[str, Any]) -> ssl.SSLContext:
    context = client_context()
    if (authorities := settings.get("ssl.ca.location")) is not None:
        load_authorities(context, Path(str(authorities)), setting="fetch.ssl.ca.location")
    else:
        context.load_default_certs()
    is_verified = _choice(settings, "enable.ssl.certificate.verification", ("true", "false")) == "true"
    names_host = _choice(settings, "ssl.endpoint.identification.algorithm", ("https", "none")) == "https"
    context.check_hostname = is_verified and names_host
    if not is_verified:
        context.verify_mode = ssl.CERT_NONE
    if CERTIFICATE in settings:
        password = str(settings.get("ssl.key.password", ""))
        certificate, key = Path(str(settings[CERTIFICATE])), Path(str(settings[KEY]))
        load_certificate(context, f"fetch.{CERTIFICATE}", certificate, key, password=password)
    return context


def _choice(settings: Mapping[str, Any], name: str, allowed: tuple[str, ...]) -> str:
    """The value in lower case; by default the first allowed one."""
    value = str(settings.get(name, allowed[0])).lower()
    if value not in allowed:
        raise ConfigError(f"fetch.{name}", settings[name], f"one of {', '.join(allowed)}")
    return value


def _mechanism(settings: Mapping[str, Any]) -> str:
    return str(settings.get("sasl.mechanism", settings.get("sasl.mechanisms", ""))).upper()

"""Which settings of the clients of other systems a connector may have: those on a list, and those an operator allows.

Who may write a connector is not the user of the worker. Settings of clients read files, send what they contain, start
programs, load code and switch checks off, and each version of a client has new ones. So each client has a list of what
is known to do none of that (Kafka: ``spark.kafka_client``, PostgreSQL: ``postgres_store``, formats of Spark:
``spark.sources.any_spark``, functions of Spark SQL: ``spark.transforms.functions``).
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Collection
from typing import Final

from ..errors import ConfigError

ALLOWED_SETTINGS: Final = "CONNECTGROUP_ALLOWED_SETTINGS"
"""Environment variable of a worker, and of a server that checks configurations: more settings, each as
``CLIENT.SETTING``, separated by commas: ``kafka.sasl.oauthbearer.method,postgres.service,sql.from_xml``."""


def is_allowed(client: str, name: str) -> bool:
    """Whether the operator of this process allows a setting that is not on the list of its client."""
    listed = os.environ.get(ALLOWED_SETTINGS, "").split(",")
    return f"{client}.{name}" in (each.strip() for each in listed)


def check_setting(field: str, client: str, name: str, known: Collection[str], what: str) -> None:
    """Reject a setting of a client that neither the list nor the operator allows.

    Args:
        field: the setting of the connector.
        client: as the operator names it.
        name: the client's name of the setting.
        known: the client's list.
        what: what is on the list, for the reader of the error.

    Raises:
        ConfigError: names the setting, without its value, which may be a password.
    """
    if name in known or is_allowed(client, name):
        return
    near = difflib.get_close_matches(name[:100], known, n=1, cutoff=0.9)
    hint = f"{near[0]} (did you mean that?), " if near else ""
    raise ConfigError(field, name, f"{hint}{what}, and what the worker's {ALLOWED_SETTINGS} adds ({client}.SETTING)")

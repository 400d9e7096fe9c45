"""The shared data types: units, messages, records. Imports no other package of the project."""

from __future__ import annotations

from typing import Final

DEFAULT_PORT: Final = 8474
"""Default port of a coordinator; chosen to avoid well-known ports."""

DEFAULT_REST_PORT: Final = 8083
"""Default port of the REST API; Kafka Connect's."""

HISTORY: Final = 100
"""Number of rebalances that a group keeps: PD-12."""

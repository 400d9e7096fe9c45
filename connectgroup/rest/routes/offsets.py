"""``/connectors/{name}/offsets`` (KIP-875)."""

from __future__ import annotations

from typing import Final

from starlette.routing import Route

from .root import not_implemented

ROUTES: Final = (Route("/connectors/{name}/offsets", not_implemented, methods=["GET", "PATCH", "DELETE"]),)

"""Puts the guides and the examples into the wheel, for ``connectgroup docs``; an editable install finds them itself."""

from __future__ import annotations

from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

FOLDER = "connectgroup/docs"


class GuidesHook(BuildHookInterface):  # type: ignore[type-arg]
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version == "standard":
            build_data["force_include"] |= {
                f"{self.root}/README.md": f"{FOLDER}/README.md",
                f"{self.root}/docs": FOLDER,
                f"{self.root}/examples": f"{FOLDER}/examples",
            }

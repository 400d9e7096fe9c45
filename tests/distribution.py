"""Plug-ins as they are installed: a folder with code and a ``.dist-info``, for the path."""

from __future__ import annotations

from pathlib import Path


def make_distribution(site: Path, distribution: str, group: str, code: str, **entries: str) -> None:
    """Write a distribution: ``make_distribution(site, "dist", "connectgroup.assignors", CODE, good=":Good")``.

    Its module is ``dist_code``; each entry is the name of a plug-in and its object in the module.
    """
    info = site / f"{distribution}-1.0.dist-info"
    info.mkdir(parents=True)
    (site / f"{distribution}_code.py").write_text(code)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.0\n")
    lines = [f"{name.replace('_', '-')} = {distribution}_code{value}" for name, value in entries.items()]
    (info / "entry_points.txt").write_text(f"[{group}]\n" + "\n".join(lines) + "\n")

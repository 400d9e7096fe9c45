"""Every rule id that is cited can be looked up in ``connectgroup/REQUIREMENTS.md``."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
ID = re.compile(r"\b(?:(?:CA|RE|HB|ST|TO|TA|RV|CN|IC|WC|SK|RG|RR|PR|GT|MG|OC|UH|UX|PD)-\d{2}|[SDXLF]\d{1,2})\b")
FOLDERS = ("connectgroup", "assignors", "listeners", "examples", "benchmarks", "tests")


def test_each_cited_rule_is_in_the_requirements() -> None:
    rows = (ROOT / "connectgroup" / "REQUIREMENTS.md").read_text(encoding="utf-8")
    known = set(re.findall(r"^\| ([A-Z]+-?\d+) \|", rows, re.MULTILINE))
    cited: dict[str, str] = {}
    for folder in FOLDERS:
        for file in sorted((ROOT / folder).rglob("*")):
            if file.suffix in {".py", ".md", ".txt"} and file.name != "REQUIREMENTS.md":
                for rule in ID.findall(file.read_text(encoding="utf-8")):
                    cited.setdefault(rule, str(file.relative_to(ROOT)))
    assert len(cited) > 150
    assert {rule: file for rule, file in cited.items() if rule not in known} == {}

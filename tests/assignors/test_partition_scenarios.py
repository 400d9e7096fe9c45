"""Every row of the tables of partition assignors has a test named after it, and every such name has a row."""

from __future__ import annotations

import re
from pathlib import Path

ROWS = {
    "sticky, on a client": "sk 01 02 03 04 05 06 07 08 09 10 13 14 15 16 18 19 20 21 23 26 27 28 29 30",
    "range, on a client": "rg 01 02 03 04 05 06 08 09 10",
    "round robin, on a client": "rr 01 02 03",
    "range, on the server": "rgs 01 02 03 04 05 06 08 09",
    "uniform, equal subscriptions": "uh 01 02 03 04 06 07 08",
    "uniform, other subscriptions": "ux 01 03 04",
}


def test_each_row_is_named_by_a_test() -> None:
    expected = {f"{kind}_{number}" for kind, *numbers in map(str.split, ROWS.values()) for number in numbers}
    source = "".join(path.read_text(encoding="utf-8") for path in sorted(Path(__file__).parent.glob("test_*.py")))
    named = set(re.findall(r'(?:def test_|")((?:sk|rg|rr|rgs|uh|ux)_\d\d)(?=_|")', source))
    assert named == expected

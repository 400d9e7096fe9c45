"""External text, escaped for one line."""

from __future__ import annotations

import time

import pytest

from connectgroup.protocol.units import printable


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("plain", "plain"),
        ("a\nb\0", "a\\nb\\x00"),
        ("x" * 80, "x" * 80),
        ("x" * 81, "x" * 77 + "..."),
        ("\n" * 41, "\\n" * 38 + "\\" + "..."),
        (b"ab", "b'ab'"),
        (17, "17"),
        ("\ud800", "\\ud800"),
    ],
)
def test_text_is_escaped_and_cut_to_80_characters(value: object, shown: str) -> None:
    assert printable(value) == shown


@pytest.mark.parametrize("value", ["\n" * (7 << 20), b"\n" * (7 << 20), "x" * (7 << 20)])
def test_long_text_is_cut_before_it_is_escaped(value: object) -> None:
    """7 MiB took 2.7 s, and meanwhile every worker of the coordinator lost its lease."""
    started = time.process_time()
    for _ in range(10):
        assert len(printable(value)) == 80
    assert time.process_time() - started < 0.5

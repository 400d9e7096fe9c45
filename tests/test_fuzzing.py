"""The fuzz tests' helpers: the number of inputs per decoder where CI=true, and what is detected."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from .fuzzing import INPUTS, LENGTHS, SEED, attack, cut_after, inputs_each, mutated, one_line

ROOT = Path(__file__).parents[1]


def test_decoder_gets_200_000_inputs_in_ci() -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("FUZZ_")}
    environment |= {"CI": "true", "PYTHONPATH": str(ROOT)}
    command = (sys.executable, "-c", "from tests import fuzzing; print(fuzzing.INPUTS, fuzzing.inputs_each(3) * 3)")
    output = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True).stdout
    whole, in_three_parts = map(int, output.split())
    assert whole >= 200_000
    assert in_three_parts >= whole


def test_attack_tries_the_given_number_of_distinct_inputs() -> None:
    tried: list[bytes] = []

    def decode(data: bytes) -> None:
        tried.append(data)
        if data != b"fine":
            raise ValueError("no")

    attack(decode, None, [b"fine", b"as fine as this one, and longer"], 5_000, ValueError)
    assert len(tried) == 5_000
    assert len(set(tried)) > 3_000
    assert max(map(len, tried)) > 40
    assert any(length in data for data in tried for length in LENGTHS)


def test_attack_fails_on_any_other_exception() -> None:
    def decode(data: bytes) -> None:
        if data.endswith(b"\xff"):
            raise KeyError("never seen before")
        if data != b"fine":
            raise ValueError("no")

    with pytest.raises(AssertionError, match=rf"FUZZ_SEED={SEED}: .*ff ended in KeyError"):
        attack(decode, None, [b"fine"], 50_000, ValueError)


def test_attack_fails_if_the_round_trip_differs() -> None:
    with pytest.raises(AssertionError, match="does not survive a round trip"):
        attack(lambda data: data[:1].decode("ascii"), lambda text: b"a", [b"abc"], 5_000, UnicodeDecodeError)


@pytest.mark.parametrize(("message", "wrong"), [("two\nlines", "two"), ("endless " * 400, "endless"), ("it", "it")])
def test_error_message_is_one_line_of_bounded_length(message: str, wrong: str) -> None:
    with pytest.raises(AssertionError, match=wrong):
        one_line(ValueError(message), begins="the file")


def test_equal_seeds_make_equal_inputs() -> None:
    one, other = (
        [mutated(b"abcdef", [b"xyz"], dice) for _ in range(100)] for dice in (random.Random(3), random.Random(3))
    )
    assert one == other


def test_input_cut_after_a_length_has_nothing_behind_it() -> None:
    assert [*cut_after(b"ab")] == [beginning + length for beginning in (b"", b"a") for length in LENGTHS]


def test_parts_of_a_decoder_make_a_whole() -> None:
    assert all(0 <= inputs_each(parts) * parts - INPUTS < parts for parts in range(1, 20))

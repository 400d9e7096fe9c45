"""Bytes that are nearly right: valid ones with bits flipped, lengths blown up, parts cut out, doubled or swapped.

``FUZZ_INPUTS`` sets the number of inputs a decoder: 200,000 by default where CI=true, else 20,000. ``FUZZ_SEED`` sets
the seed. A failure prints both the seed and the input.
"""

from __future__ import annotations

import os
import random
import tempfile
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

INPUTS: Final = int(os.environ.get("FUZZ_INPUTS") or (200_000 if os.environ.get("CI") == "true" else 20_000))
SEED: Final = int(os.environ.get("FUZZ_SEED") or 1)


def inputs_each(parts: int) -> int:
    """How many inputs each of several parts of one decoder gets, so that the whole has no less than its number."""
    return -(-INPUTS // parts)


TELLING: Final = (0x00, 0x01, 0x02, 0x7F, 0x80, 0xFF, 0x40, 0x0F, 0x10, 0xC0)
"""Bytes at the edge of something: of a varint, an integer, a character."""

LENGTHS: Final = tuple(
    map(
        bytes.fromhex,
        (
            "7fffffff",
            "80000000",
            "ffffffff",
            "00100000",
            "7fff",
            "8000",
            "ffffffff07",
            "ffffffff0f",
            "808040",
            "ffff03",
        ),
    )
)
"""Lengths and counts that are too large, negative or null: int32, int16 and varint."""


def mutated(data: bytes, others: Sequence[bytes], rng: random.Random) -> bytes:
    """One to three changes to ``data``; now and then nothing but noise.

    Args:
        others: valid inputs, to put the end of one behind the beginning of another.
    """
    dice = rng.random
    if dice() < 0.02:
        return rng.randbytes(int(dice() * 60))
    out = bytearray(data)
    for _ in range(1 + int(dice() * 3)):
        at = int(dice() * (len(out) + 1))
        match int(dice() * 10):
            case 0 | 1:
                out[at : at + 1] = bytes((TELLING[int(dice() * len(TELLING))],))
            case 2 | 3:
                if at < len(out):
                    out[at] ^= 1 << int(dice() * 8)
            case 4:
                out[at : at + 1] = bytes((int(dice() * 256),))
            case 5:
                del out[at : at + 1 + int(dice() * 8)]
            case 6:
                out[at:at] = out[at : at + 1 + int(dice() * 20)]
            case 7:
                length = LENGTHS[int(dice() * len(LENGTHS))]
                out[at : at + (len(length) if dice() < 0.5 else 1)] = length
            case 8:
                del out[at:]
            case _:
                other = others[int(dice() * len(others))]
                out[at:] = other[int(dice() * (len(other) + 1)) :]
    return bytes(out)


def attack(
    decode: Callable[[bytes], Any],
    encode: Callable[[Any], bytes] | None,
    valid: Sequence[bytes],
    inputs: int,
    refusals: type[Exception],
) -> None:
    """Any bytes whatever are read or refused, with no error but ``refusals``, and one line that is not endless.

    Args:
        encode: what was read must be read again from what this makes of it; ``None`` where there is no way back.
        valid: what the inputs are made from; all of them are read.
    """
    rng = random.Random(SEED)
    accepted = refused = 0
    for number in range(inputs):
        data = mutated(valid[number % len(valid)], valid, rng)
        try:
            decoded = decode(data)
        except refusals as error:
            refused += 1
            if refused % 64 == 0:  # it takes as long as the decoding
                one_line(error)
            continue
        except BaseException as error:
            raise AssertionError(f"FUZZ_SEED={SEED}: {data.hex()} ended in {error!r}") from error
        accepted += 1
        if encode is not None:
            assert decode(encode(decoded)) == decoded, f"FUZZ_SEED={SEED}: {data.hex()} is not what it was read as"
    # Noise that is always refused, or always accepted, tests nothing.
    assert refused > 0 or not any(valid)
    assert accepted > 0


def one_line(error: Exception, begins: str = "") -> None:
    """An error as people may be shown it."""
    says = str(error)
    assert "\n" not in says, says
    assert len(says) < 1500, says
    assert says.startswith(begins), says


@contextmanager
def folder_in_memory() -> Iterator[Path]:
    """A folder for files that are written by the thousand; on the disk where there is no other place."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as folder:
        yield Path(folder)


def most_memory(decode: Callable[[bytes], Any], data: bytes, refusals: type[Exception]) -> int:
    """The most bytes that were held at a time while ``data`` was read, or refused; ``tracemalloc`` must be on."""
    tracemalloc.reset_peak()
    before, _ = tracemalloc.get_traced_memory()
    with suppress(refusals):
        decode(data)
    return tracemalloc.get_traced_memory()[1] - before


def cut_after(data: bytes) -> list[bytes]:
    """The beginning of ``data`` up to each place, and then each of ``LENGTHS``: of what it claims, nothing comes."""
    return [data[:at] + length for at in range(len(data)) for length in LENGTHS]


def blown_up(data: bytes) -> list[bytes]:
    """``data`` with each of ``LENGTHS`` at each place, once in place of as many bytes and once in place of one."""
    return [
        data[:at] + length + data[at + taken :]
        for at in range(len(data))
        for length in LENGTHS
        for taken in (1, len(length))
    ]

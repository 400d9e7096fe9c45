"""Almost valid bytes: valid inputs with bits flipped, lengths enlarged, and parts cut out, doubled or swapped.

``FUZZ_INPUTS`` sets the number of inputs per decoder; the default is in ``INPUTS``. ``FUZZ_SEED`` sets the seed. A
failure prints the seed and the input.
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

from tests.volume import volume

INPUTS: Final = int(os.environ.get("FUZZ_INPUTS") or volume(2_000, 200_000, 500_000))
SEED: Final = int(os.environ.get("FUZZ_SEED") or 1)


def inputs_each(parts: int) -> int:
    """Number of inputs for each of several parts of one decoder, so that the sum is at least the configured number."""
    return -(-INPUTS // parts)


TELLING: Final = (0x00, 0x01, 0x02, 0x7F, 0x80, 0xFF, 0x40, 0x0F, 0x10, 0xC0)
"""Boundary bytes: of a varint, an integer, a character."""

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
    """One to three changes to ``data``; sometimes only random bytes.

    Args:
        others: valid inputs, whose ends may be appended to a beginning of ``data``.
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
    """Any bytes are decoded or rejected, with no exception but ``refusals``, in one line of bounded length.

    Args:
        encode: its result must decode to the same value; ``None``: no round trip.
        valid: valid inputs, from which the others are made.
    """
    rng = random.Random(SEED)
    accepted = refused = 0
    for number in range(inputs):
        data = mutated(valid[number % len(valid)], valid, rng)
        try:
            decoded = decode(data)
        except refusals as error:
            refused += 1
            if refused % 64 == 0:  # it takes as long as decoding
                one_line(error)
            continue
        except BaseException as error:
            raise AssertionError(f"FUZZ_SEED={SEED}: {data.hex()} ended in {error!r}") from error
        accepted += 1
        if encode is not None:
            assert decode(encode(decoded)) == decoded, f"FUZZ_SEED={SEED}: {data.hex()} does not survive a round trip"
    # Inputs that are always rejected, or always accepted, test nothing.
    assert refused > 0 or not any(valid)
    assert accepted > 0


def one_line(error: Exception, begins: str = "") -> None:
    """Check that an error is one line of bounded length."""
    message = str(error)
    assert "\n" not in message, message
    assert len(message) < 1500, message
    assert message.startswith(begins), message


@contextmanager
def folder_in_memory() -> Iterator[Path]:
    """A folder for thousands of files; on disk where there is no memory file system."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as folder:
        yield Path(folder)


SMALL_PEAK = 10_000
"""Bytes that no test rejects."""


def peak_memory(decode: Callable[[bytes], Any], data: bytes, refusals: type[Exception]) -> int:
    """Peak memory in bytes while ``data`` was decoded or rejected; ``tracemalloc`` must be on.

    Threads that other tests have left in this process allocate, too: of three large peaks, the least is returned.
    """
    peaks = list[int]()
    while len(peaks) < 3 and not (peaks and peaks[-1] < SMALL_PEAK):
        tracemalloc.reset_peak()
        before, _ = tracemalloc.get_traced_memory()
        with suppress(refusals):
            decode(data)
        peaks.append(tracemalloc.get_traced_memory()[1] - before)
    return min(peaks)


class Inputs(Sequence[bytes]):
    """Inputs that are made when they are asked for: all of a large message at once would be gigabytes."""

    def __init__(self, count: int, made: Callable[[int], bytes]) -> None:
        self._count, self._made = count, made

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, number: Any) -> Any:
        if not 0 <= number < self._count:
            raise IndexError(number)
        return self._made(number)


def cut_after(data: bytes) -> Inputs:
    """Prefixes of ``data`` of every length, each followed by each of ``LENGTHS`` and nothing else."""

    def made(number: int) -> bytes:
        at, length = divmod(number, len(LENGTHS))
        return data[:at] + LENGTHS[length]

    return Inputs(len(data) * len(LENGTHS), made)


def enlarged(data: bytes) -> Inputs:
    """``data`` with each of ``LENGTHS`` at each position, replacing one byte, or as many bytes."""

    def made(number: int) -> bytes:
        number, as_many = divmod(number, 2)
        at, length = divmod(number, len(LENGTHS))
        taken = len(LENGTHS[length]) if as_many else 1
        return data[:at] + LENGTHS[length] + data[at + taken :]

    return Inputs(len(data) * len(LENGTHS) * 2, made)

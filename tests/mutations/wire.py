"""Bytes that are no message, and messages that are no record: ``wire/``."""

from __future__ import annotations

from .mutant import Mutant

CODEC = "connectgroup/wire/codec.py"
PRIMITIVES = "connectgroup/wire/primitives.py"
FRAMING = "connectgroup/wire/framing.py"
RECORD_CODEC = "connectgroup/wire/record_codec.py"

BAD_INPUT = "tests/wire/test_bad_input.py"
FRAMES = "tests/wire/test_framing.py"
FUZZ = "tests/wire/test_fuzz.py"

WIRE: tuple[Mutant, ...] = (
    Mutant(
        name="the count of an array is not held against what remains: memory first, error later",
        file=CODEC,
        old='f"if n < 0 or n * {least} > size - pos:"',
        new='"if n < 0:"',
        tests=BAD_INPUT,
    ),
    Mutant(
        name="room for all elements of an array is made before their count is looked at (KAFKA-20570)",
        file=CODEC,
        old='        self.put(indent, f"if n < 0 or n * {least} > size - pos:")\n',
        new=(
            '        self.put(indent, "room = [None] * min(n, 1 << 20)")\n'
            '        self.put(indent, f"if n < 0 or n * {least} > size - pos:")\n'
        ),
        tests=f"{FUZZ}::test_a_frame_with_a_header_and_a_count_of_two_thousand_million_takes_no_memory",
    ),
    Mutant(
        name="room for a whole frame is made when its length has come",
        file=FRAMING,
        old="            if stop > size:\n                break\n",
        new="            if stop > size:\n                bytearray(length)\n                break\n",
        tests=f"{FUZZ}::test_frames_are_held_as_they_come_whatever_length_they_claim",
    ),
    Mutant(
        name="elements of an array are taken to be one byte long at least, whatever they are",
        file=CODEC,
        old='f"if n < 0 or n * {least} > size - pos:"',
        new='"if n < 0 or n > size - pos:"',
        tests=BAD_INPUT,
    ),
    Mutant(
        name="a negative count is an empty array",
        file=CODEC,
        old='f"if n < 0 or n * {least} > size - pos:"',
        new='f"if n * {least} > size - pos:"',
        tests=BAD_INPUT,
    ),
    Mutant(
        name="a string may go beyond the end of its message",
        file=CODEC,
        old='"if not pos <= stop <= size:"',
        new='"if not pos <= stop:"',
        tests=BAD_INPUT,
    ),
    Mutant(
        name="a string in an array may go beyond the end of its message",
        file=PRIMITIVES,
        old="    if not pos <= stop <= size:\n",
        new="    if not pos <= stop:\n",
        tests=BAD_INPUT,
    ),
    Mutant(
        name="a null string where none is allowed goes back in the message",
        file=CODEC,
        old='"if not pos <= stop <= size:"',
        new='"if not stop <= size:"',
        tests=BAD_INPUT,
    ),
    Mutant(
        name="a varint may be as long as it likes",
        file=PRIMITIVES,
        old="    while shift < 35:\n",
        new="    while shift < 70:\n",
        tests=BAD_INPUT,
    ),
    Mutant(
        name="a varint may be wider than 32 bits",
        file=PRIMITIVES,
        old="            if value > MAX_LENGTH:\n",
        new="            if value < 0:\n",
        tests=BAD_INPUT,
    ),
    Mutant(
        name="a varint may be longer than it need be",
        file=PRIMITIVES,
        old="            if byte == 0:\n",
        new="            if byte < 0:\n",
        tests=BAD_INPUT,
    ),
    Mutant(
        name="bytes behind the end of a message are passed over",
        file=CODEC,
        old="        if pos != size:\n",
        new="        if pos > size:\n",
        tests="tests/wire/test_round_trip.py::test_every_truncation_and_every_extension_is_refused",
    ),
    Mutant(
        name="tagged fields may come in any order and twice",
        file=CODEC,
        old='"if tag <= last or end > size:"',
        new='"if end > size:"',
        tests=BAD_INPUT,
    ),
    Mutant(
        name="a tag may come twice",
        file=CODEC,
        old='"if tag <= last or end > size:"',
        new='"if tag < last or end > size:"',
        tests=BAD_INPUT,
    ),
    Mutant(
        name="a tagged field may go beyond the end of its message",
        file=CODEC,
        old='"if tag <= last or end > size:"',
        new='"if tag <= last:"',
        tests=BAD_INPUT,
    ),
    Mutant(
        name="tagged fields that are not known here may come in any order",
        file=PRIMITIVES,
        old="        if tag <= last or pos + length > size:\n",
        new="        if pos + length > size:\n",
        tests=BAD_INPUT,
    ),
    Mutant(
        name="tagged fields that are not known here may go beyond the end",
        file=PRIMITIVES,
        old="        if tag <= last or pos + length > size:\n",
        new="        if tag <= last:\n",
        tests=BAD_INPUT,
    ),
    Mutant(
        name="a tagged field's value need not be as long as it says",
        file=CODEC,
        old='"if pos != end:"',
        new='"if pos > end:"',
        tests=BAD_INPUT,
    ),
    Mutant(
        name="a message may have any number of tagged fields",
        file=PRIMITIVES,
        old="    if count > MAX_TAGS:\n",
        new="    if count < 0:\n",
        tests=BAD_INPUT,
    ),
    Mutant(
        name="a struct mark that is none is taken for one",
        file=CODEC,
        old='f"elif mark != {PRESENT[0]}:"',
        new='"elif mark < 0:"',
        tests=BAD_INPUT,
    ),
    Mutant(
        name="a frame of any length is waited for",
        file=FRAMING,
        old="            if not 1 <= length <= self._max_bytes:\n",
        new="            if length < 1:\n",
        tests=FRAMES,
    ),
    Mutant(
        name="an empty frame is a message",
        file=FRAMING,
        old="            if not 1 <= length <= self._max_bytes:\n",
        new="            if not 0 <= length <= self._max_bytes:\n",
        tests=FRAMES,
    ),
    Mutant(
        name="the longest frame allowed is refused",
        file=FRAMING,
        old="            if not 1 <= length <= self._max_bytes:\n",
        new="            if not 1 <= length < self._max_bytes:\n",
        tests=FRAMES,
    ),
    Mutant(
        name="a stream that has lost its frames goes on as if it had not",
        file=FRAMING,
        old=(
            "                self._broken = _refusal(length, self._max_bytes)\n"
            "                raise WireError(self._broken)\n"
        ),
        new="                raise WireError(_refusal(length, self._max_bytes))\n",
        tests=FRAMES,
    ),
    Mutant(
        name="a record stored under another's key is served",
        file=RECORD_CODEC,
        old="    if record.key != key:\n",
        new="    if record.key.kind != key.kind:\n",
        tests=BAD_INPUT,
    ),
    Mutant(
        name="a record of newer software is read as if it were ours (KAFKA-18672)",
        file=RECORD_CODEC,
        old="    codec = codecs.get(version)\n",
        new="    codec = codecs.get(min(version, max(codecs)))\n",
        tests=BAD_INPUT,
    ),
)

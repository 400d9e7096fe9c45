"""Frames are complete however the stream is cut, and an invalid length ends the stream."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from connectgroup.errors import WireError
from connectgroup.wire import FrameReader, frame


@given(st.lists(st.binary(min_size=1, max_size=50), max_size=8), st.data())
def test_frames_are_split_correctly_however_the_stream_is_cut(frames: list[bytes], data: st.DataObject) -> None:
    stream = b"".join(map(frame, frames))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=10)))
    reader, got = FrameReader(max_bytes=50), list[bytes]()
    for begin, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        got += reader.feed(stream[begin:end])
    assert got == frames
    assert not reader.mid_frame


def test_single_bytes_form_a_frame_and_report_an_unfinished_one() -> None:
    reader = FrameReader()
    stream = frame(b"abc")
    for position in range(len(stream) - 1):
        assert reader.feed(stream[position : position + 1]) == []
        assert reader.mid_frame
    assert reader.feed(stream[-1:]) == [b"abc"]
    assert not reader.mid_frame


@pytest.mark.parametrize(
    ("length", "message"),
    [
        ("7fffffff", "frame of 2147483647 bytes exceeds max 1048576"),
        ("00100001", "frame of 1048577 bytes exceeds max 1048576"),
        ("00000000", "frame of 0 bytes; allowed: 1 to 1048576"),
        ("ffffffff", "frame of -1 bytes; allowed: 1 to 1048576"),
        ("80000000", "frame of -2147483648 bytes; allowed: 1 to 1048576"),
    ],
)
def test_invalid_length_ends_the_stream(length: str, message: str) -> None:
    """Reliability, section 4, wire 1. Rejected by its four bytes, before any of the body is buffered."""
    reader = FrameReader(max_bytes=1 << 20)
    for data in (frame(b"ok") + bytes.fromhex(length), frame(b"ok"), b""):
        with pytest.raises(WireError) as caught:
            reader.feed(data)
        assert str(caught.value) == message
    assert not reader.mid_frame


def test_longest_allowed_frame_passes() -> None:
    assert FrameReader(max_bytes=10).feed(frame(b"0123456789")) == [b"0123456789"]
    with pytest.raises(WireError, match="frame of 10 bytes exceeds max 9"):
        FrameReader(max_bytes=9).feed(frame(b"0123456789"))


def test_empty_input_is_no_frame() -> None:
    with pytest.raises(WireError, match="frame of 0 bytes"):
        frame(b"")

"""Bytes to messages and back: Kafka's wire, from message definitions in Kafka's own JSON form.

    framing        four bytes of length, then a message             FrameReader, frame
    apis           header and body of requests and responses        decode_request, encode_response, error_response ...
    record_codec   what the log keeps                               encode_record, decode_record
    codec          definition -> Python source -> two functions     compile_codec
    definition     reads ``messages/*.json``, holds it against the class
    primitives     what generated code calls for the rare case
    faults         from a failed line of generated code to the field's name

Pure: no I/O, no clock, the standard library only. For any bytes whatever the outcome is a message or a ``WireError``.
To add a field: add it to the class and, as a *tagged* field with the next tag, to the definition; a peer without it
passes over it. To change anything else, add a version. ``load`` refuses a class and a definition that disagree.
"""

from __future__ import annotations

from .apis import (
    APIS,
    Api,
    DecodedRequest,
    DecodeFailure,
    RequestHeader,
    decode_request,
    decode_response,
    encode_request,
    encode_response,
    error_response,
    refusal,
    served,
)
from .framing import FrameReader, frame
from .record_codec import decode_record, encode_record

__all__ = [
    "APIS",
    "Api",
    "DecodeFailure",
    "DecodedRequest",
    "FrameReader",
    "RequestHeader",
    "decode_record",
    "decode_request",
    "decode_response",
    "encode_record",
    "encode_request",
    "encode_response",
    "error_response",
    "frame",
    "refusal",
    "served",
]

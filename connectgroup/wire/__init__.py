"""Encoding and decoding of Kafka's wire format, from message definitions in Kafka's own JSON form.

    framing        four bytes of length, then a message             FrameReader, frame
    apis           header and body of requests and responses        decode_request, encode_response, error_response ...
    record_codec   records as stored in the log                     encode_record, decode_record
    codec          definition -> Python source -> two functions     compile_codec
    definition     reads ``messages/*.json``, checks it against the class
    primitives     functions that generated code calls for rare cases
    faults         maps a failed line of generated code to the name of the field

Pure: no I/O, no clock, the standard library only. For any input bytes the result is a message or a ``WireError``.
To add a field: add it to the class and, as a *tagged* field with the next tag, to the definition; a peer without it
skips it. To change anything else, add a version. A class and a definition that disagree are rejected when first used.
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

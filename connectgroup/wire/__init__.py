"""Encoding and decoding of Kafka's wire format, from message definitions in Kafka's own JSON form.

    apis           header and body of requests and responses        decode_request, encode_response, response_to ...
    record_codec   records as stored in the log                     encode_record, decode_record
    codec          definition -> Python source -> two functions     compile_codec
    definition     reads ``messages/*.json``, checks it against the class
    primitives     what generated code calls for rare cases; frames  FrameReader, frame
    embedded       what members exchange in JoinGroup and SyncGroup

Pure: no I/O, no clock, the standard library only. For any input bytes the result is a message or a ``WireError``.
To add a field: add it to the class and, as a *tagged* field with the next tag, to the definition; a peer without it
skips it. To change anything else, add a version. A class and a definition that disagree are rejected when first used.

Decisions:

- Every string and array of a request declares its limit in its definition (``maxLength``, ``maxElements``, and
  ``maxTotal`` for all arrays of a field in one message: a limit for each of 1,000 nested arrays limits nothing). The
  decoder checks them before it allocates. Identifiers: 249 bytes, as Kafka's topic names. Responses and records have
  no limits: their writers are trusted.
- Fields of this project in Kafka's messages have tags from 20480 on, as its APIs have keys from 20480 on: a later
  Kafka uses low tags. Three errors of connectors have codes of their own (20483 to 20485): Kafka's protocol has no
  connectors.
- Flags of a request's version are attributes that the decoder sets (``trueIn`` in the definition):
  ``requires_member_id``, ``skips_assignment``. The rules of a group know no versions.
- The metadata of our classic workers is a ConnectGroupHeartbeat request, their assignment its response
  (``embedded``): one set of rules decides for members of both protocols.
- In the bytes that consumers exchange, text that is not UTF-8 and negative lengths other than -1 are rejected.
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
    refusal,
    response_to,
    served,
)
from .primitives import FrameReader, frame
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
    "frame",
    "refusal",
    "response_to",
    "served",
]

"""Results of an operator's requests, and the error in a response."""

from __future__ import annotations

from dataclasses import dataclass

from ..protocol.messages.api import Request, Response
from ..protocol.messages.describe import DeleteResponse, DescribeRequest, DescribeResponse
from ..protocol.messages.offsets import OffsetFetchResponse


@dataclass(frozen=True, slots=True, kw_only=True)
class PutResult:
    """The result of ``Admin.put_connector``.

    Attributes:
        version: the connector's version: the group epoch of its last change.
        created: whether the connector did not exist before.
    """

    version: int
    created: bool


def error_of(request: Request, response: Response) -> tuple[int, str | None]:
    """The error code of a response, 0 for success, and its message.

    Describe, Delete and OffsetFetch have no error at the top level: a rejected request has one group with the error.
    """
    if isinstance(response, DescribeResponse) and response.groups:
        group = response.groups[0]
        if not group.group_id or (isinstance(request, DescribeRequest) and request.group_ids):
            return group.error_code, group.error_message
    if isinstance(response, DeleteResponse):
        return response.results[0].error_code, response.results[0].error_message
    if isinstance(response, OffsetFetchResponse):
        return response.first.error_code, None
    return getattr(response, "error_code", 0), getattr(response, "error_message", None)

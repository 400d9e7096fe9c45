"""The error in a response of an operator's request."""

from __future__ import annotations

from ..protocol.messages.api import Request, Response
from ..protocol.messages.describe import DeleteResponse, DescribeRequest, DescribeResponse


def error_of(request: Request, response: Response) -> tuple[int, str | None]:
    """The error code of a response, 0 for success, and its message.

    Describe and Delete have no error at the top level: a rejected request has one group with the error.
    """
    if isinstance(response, DescribeResponse) and response.groups:
        group = response.groups[0]
        if not group.group_id or (isinstance(request, DescribeRequest) and request.group_ids):
            return group.error_code, group.error_message
    if isinstance(response, DeleteResponse):
        return response.results[0].error_code, response.results[0].error_message
    return getattr(response, "error_code", 0), getattr(response, "error_message", None)

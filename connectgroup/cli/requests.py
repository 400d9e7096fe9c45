"""One request to the coordinator per subcommand."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from ..errors import TransportError, from_code
from ..protocol.messages.api import Request, Response
from ..protocol.messages.describe import (
    DescribedGroup,
    DescribeRequest,
    DescribeResponse,
)

if TYPE_CHECKING:
    pass


async def describe_group(options: argparse.Namespace, group_ids: tuple[str, ...]) -> tuple[DescribedGroup, ...]:
    response = await send_request(options, DescribeRequest(group_ids=group_ids))
    assert isinstance(response, DescribeResponse)
    for group in response.groups:
        if group.error_code:
            raise from_code(group.error_code, group.error_message)
    return response.groups


async def send_request(options: argparse.Namespace, request: Request) -> Response:
    from ..config.base import parse_address
    from ..transport.tcp_client import TcpClient

    client = TcpClient(*parse_address("--coordinator", options.coordinator), "cli")
    try:
        return await client.call(request, timeout_s=10)
    except TransportError as error:
        raise TransportError(f"{error}; allowed: --coordinator names a coordinator that runs") from error
    finally:
        await client.close()

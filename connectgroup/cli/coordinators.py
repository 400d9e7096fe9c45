"""``connectgroup coordinators``: the coordinators that share a log."""

from __future__ import annotations

import argparse

from ..log.base import NONE_STOOD_BY
from ..rest.views import coordinators_description
from .render import print_json, print_table, time_text
from .requests import connected


async def list_coordinators(options: argparse.Namespace) -> int:
    async with connected(options) as admin:
        found = await admin.describe_coordinators()
        address = admin.address
    shown = coordinators_description(found, address)
    if options.json:
        print_json(shown)
        return 0
    is_partitioned = shown["partitions"] > 1
    print_table(
        ("ADDRESS", "ROLE", *(("PARTITION",) if is_partitioned else ()), "EPOCH", "SINCE", "LAG"),
        [
            (
                each["address"],
                each["role"],
                *(("-" if each["partition"] is None else each["partition"],) if is_partitioned else ()),
                "-" if each["epoch"] is None else each["epoch"],
                time_text(each["since_ms"]),
                "-" if each["lag_ms"] is None else f"{each['lag_ms'] / 1000:.1f} s",
            )
            for each in shown["coordinators"]
        ],
    )
    if unserved := shown["unserved_partitions"]:
        numbers = ", ".join(map(str, unserved))
        print(f"no coordinator serves {f'partition {numbers} of ' if is_partitioned else ''}the log at present")
    if failover := shown["last_failover"]:
        which = f" partition {failover['partition']}" if is_partitioned else ""
        at, took_ms = time_text(failover["at_ms"]), failover["took_ms"]
        if failover["cause"] == NONE_STOOD_BY:
            print(f"no coordinator served{which} for {took_ms} ms until {at}: none stood by")
        else:
            print(f"last fail-over{' of' + which if which else ''}: {at}, {failover['cause']}, took {took_ms} ms")
    return 0

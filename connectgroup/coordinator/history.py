"""The last hour of each connector in numbers, and its last events: in memory, within fixed limits.

Nothing is sampled by a timer: what workers report is added to the interval of the moment, and intervals without reports
are filled in when the next one is needed. The numbers are written with the status of the connector, in parts of a
minute, every ``WRITE_EVERY`` intervals and when the coordinator stops in order: a later one goes on from there. The
events begin again.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict, deque
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Final

from ..protocol.messages.progress import MAX_COUNT, MAX_LINE, MAX_NUMBER, ConnectorHistory, UnitEvent
from ..protocol.units import printable

INTERVAL_MS: Final = 15_000
INTERVALS: Final = 240
"""An hour."""

WRITE_EVERY: Final = 20
"""Five minutes: what the history lacks at most after a coordinator that was killed."""

MAX_WRITTEN: Final = 50
"""Connectors whose history is written at once: to put one together and to encode it takes some 0.1 ms."""

POINTS_WRITTEN: Final = 60
"""Some 1.5 KB for each connector."""

MAX_SERIES: Final = 3_000
"""Connectors of all groups that have a history, some 18 MB; of more, those that reported last."""

MAX_EVENTS: Final = 200
"""Events of one connector."""

MAX_ALL_EVENTS: Final = 5_000
"""Events of all connectors; the oldest ones of the connector that has been quiet for longest go first."""

Name = tuple[str, str]
"""Group and connector."""


class Series:
    """The last hour of one connector, as rings: interval ``n`` since 1970 is at index ``n % INTERVALS``.

    Attributes:
        first, last: the first and the last interval that is known. Changed by ``_advance``.
        written: the interval in which it was last written; -1: never. Changed by ``Histories``.
        record: what was written last, or was restored; ``None``: nothing. Changed by ``Histories``.
    """

    __slots__ = ("_errors", "_lag", "_rows", "first", "last", "record", "written")

    def __init__(self, interval: int) -> None:
        """Begin at this interval."""
        self.first = self.last = interval
        self.written = -1
        self.record: ConnectorHistory | None = None
        self._rows, self._lag, self._errors = (array("q", bytes(8 * INTERVALS)) for _ in range(3))

    @classmethod
    def restored(cls, found: ConnectorHistory, interval: int) -> Series | None:
        """The series that an earlier coordinator has written; ``None`` if it is older than the last hour, or not one.

        Args:
            interval: of the moment.
        """
        width, last = found.interval_ms // INTERVAL_MS, found.end_ms // INTERVAL_MS - 1
        points = len(found.rows)
        if not (0 < width * points <= 2 * INTERVALS and len(found.lag) == len(found.errors) == points):
            return None
        if not interval - INTERVALS < last <= interval + 1:
            return None  # the clock of one of them was wrong, if it is not too old
        series = cls(last - width * points + 1)
        series.last = last
        series._rows, series._errors = (
            # Spread evenly; the last interval of a part has the rest.
            _ring([n for each in numbers for n in (*[each // width] * (width - 1), each // width + each % width)], last)
            for numbers in (found.rows, found.errors)
        )
        series._lag = _ring([each for each in found.lag for _ in range(width)], last)
        return series

    def set_lag(self, lag: int) -> None:
        """Set the lag at the end of the last interval."""
        self._lag[self.last % INTERVALS] = min(lag, MAX_NUMBER)

    def add(self, interval: int, *, rows: int = 0, errors: int = 0, lag: int = 0) -> None:
        """Add to the interval of the moment.

        Args:
            lag: by how much the lag has changed.
        """
        self._advance(interval)
        at = self.last % INTERVALS  # a clock that was set back adds to the last interval
        self._rows[at] = min(self._rows[at] + rows, MAX_NUMBER)
        self._errors[at] = min(self._errors[at] + errors, MAX_NUMBER)
        self._lag[at] = max(min(self._lag[at] + lag, MAX_NUMBER), -MAX_NUMBER)

    def shown(self, interval: int, points: int) -> ConnectorHistory:
        """The intervals up to this one, put together to at most ``points`` of equal length."""
        self._advance(interval)
        begin = max(self.first, self.last - INTERVALS + 1)
        count, at = self.last + 1 - begin, begin % INTERVALS
        rows, lag, errors = ((ring[at:] + ring[:at])[:count].tolist() for ring in (self._rows, self._lag, self._errors))
        width = -(-INTERVALS // max(1, min(points, INTERVALS)))
        return ConnectorHistory(
            end_ms=(self.last + 1) * INTERVAL_MS,
            interval_ms=width * INTERVAL_MS,
            rows=_sums(rows, width),
            lag=tuple(lag[(count - 1) % width :: width]),
            errors=_sums(errors, width),
        )

    def _advance(self, interval: int) -> None:
        """Fill in the intervals since the last one: no rows, no errors, the same lag."""
        lag = self._lag[self.last % INTERVALS]
        for each in range(max(self.last, interval - INTERVALS) + 1, interval + 1):
            at = each % INTERVALS
            self._rows[at] = self._errors[at] = 0
            self._lag[at] = lag
        self.last = max(self.last, interval)


def _sums(numbers: Sequence[int], width: int) -> tuple[int, ...]:
    """The sums of parts, aligned from the end, so that each but the first has the full width."""
    if width == 1:
        return tuple(numbers)
    ends = range((len(numbers) - 1) % width + 1, len(numbers) + 1, width)
    return tuple([min(sum(numbers[max(0, end - width) : end]), MAX_NUMBER) for end in ends])


def _ring(numbers: Sequence[int], last: int) -> array[int]:
    """The numbers of the intervals up to this one as a ring; see ``Series``."""
    newest = array("q", numbers[-INTERVALS:])
    whole = array("q", bytes(8 * (INTERVALS - len(newest)))) + newest
    at = (last + 1) % INTERVALS
    return whole[INTERVALS - at :] + whole[: INTERVALS - at]


class Histories:
    """The series and the events of the connectors of all groups."""

    def __init__(self) -> None:
        # Changed by the methods below; in the order of the last report, the oldest first.
        self._series: OrderedDict[Name, Series] = OrderedDict()
        self._events: OrderedDict[Name, deque[UnitEvent]] = OrderedDict()
        self._count = 0
        """Of all events."""

    def add(self, name: Name, now_ms: int, *, rows: int = 0, errors: int = 0, lag: int = 0) -> None:
        """Add to the history of a connector; see ``Series.add``."""
        interval = now_ms // INTERVAL_MS
        series = self._series.get(name)
        if series is None:
            series = self._series[name] = Series(interval)
            if len(self._series) > MAX_SERIES:
                self._series.popitem(last=False)
        self._series.move_to_end(name)
        series.add(interval, rows=rows, errors=errors, lag=lag)

    def to_write(self, name: Name, now_ms: int, *, again: bool) -> tuple[ConnectorHistory, ...]:
        """The last hour of a connector for its status record: none or one.

        Args:
            again: put it together again; otherwise, what was written last is written again, because the new record
                replaces the one before.
        """
        series, interval = self._series.get(name), now_ms // INTERVAL_MS
        if series is None:
            return ()
        if again or series.record is None:
            series.written, series.record = interval, series.shown(interval, POINTS_WRITTEN)
        return (series.record,)

    def due(self, group_id: str, now_ms: int) -> list[str]:
        """The connectors of a group whose history is to be written again."""
        before = now_ms // INTERVAL_MS - WRITE_EVERY
        return [name for (group, name), each in self._series.items() if group == group_id and each.written <= before]

    def restore(self, name: Name, found: ConnectorHistory, lag: int, now_ms: int) -> bool:
        """Go on with what an earlier coordinator has written; false if it is not usable, or newer numbers are known.

        Args:
            lag: the lag that the tasks of the connector are known to have.
        """
        interval = now_ms // INTERVAL_MS
        if name in self._series or len(self._series) >= MAX_SERIES:
            return False
        series = Series.restored(found, interval)
        if series is None:
            return False
        series.add(interval)
        series.set_lag(lag)
        series.written, series.record = interval, found
        self._series[name] = series
        return True

    def note(self, name: Name, event: UnitEvent) -> None:
        """Keep an event of a connector; one that only repeats the last one of its unit is counted."""
        events = self._events.setdefault(name, deque())
        self._events.move_to_end(name)
        event = replace(event, message=printable(event.message, limit=MAX_LINE), count=min(event.count, MAX_COUNT))
        for index in range(len(events) - 1, max(-1, len(events) - 20), -1):
            before = events[index]
            if event.kind == "log" and event == before:
                return  # a worker sends a line again if the response to the first copy was lost
            if (before.task, before.member_id) != (event.task, event.member_id):
                continue
            if (before.kind, before.message) == (event.kind, event.message) and event.kind != "log":
                del events[index]
                self._count -= 1
                if event.kind != "state":  # a worker may send a status again
                    event = replace(event, count=min(before.count + event.count, MAX_COUNT))
            if event.kind != "log":
                break
        events.append(event)
        self._count += 1
        if len(events) > MAX_EVENTS:
            self._drop(name)
        while self._count > MAX_ALL_EVENTS:
            self._drop(next(iter(self._events)))

    def _drop(self, name: Name) -> None:
        """Forget the oldest event of a connector."""
        events = self._events[name]
        events.popleft()
        self._count -= 1
        if not events:
            del self._events[name]

    def shown(
        self, group_id: str, points: int, now_ms: int, connectors: Collection[str] | None = None
    ) -> dict[str, ConnectorHistory]:
        """The histories of these connectors of a group, or of all; see ``Series.shown``."""
        interval = now_ms // INTERVAL_MS
        names = _of_group(self._series, group_id, connectors)
        return {name[1]: self._series[name].shown(interval, points) for name in names}

    def events(self, group_id: str, connectors: Collection[str] | None) -> dict[str, tuple[UnitEvent, ...]]:
        """The events of these connectors of a group, or of all."""
        return {name[1]: tuple(self._events[name]) for name in _of_group(self._events, group_id, connectors)}

    def forget(self, group_id: str, connectors: Collection[str] | None = None) -> None:
        """Forget these connectors of a group, or all."""
        for known in (self._series, self._events):
            for name in _of_group(known, group_id, connectors):
                del known[name]
        self._count = sum(map(len, self._events.values()))


def _of_group(known: Collection[Name], group_id: str, connectors: Collection[str] | None) -> list[Name]:
    """The names of these connectors of a group, or of all, that are known."""
    if connectors is None:
        return [name for name in known if name[0] == group_id]
    return [name for each in dict.fromkeys(connectors) if (name := (group_id, each)) in known]

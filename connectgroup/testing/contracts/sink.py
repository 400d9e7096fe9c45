"""The contract of every sink, as tests: inherit ``SinkContract``, define ``make_sink`` and ``read``, and run pytest.

class TestMySink(SinkContract):
    def make_sink(self, place: Path) -> Sink:
        return MySink(place / "out", self.columns)

    def read(self, place: Path) -> list[int]:
        return [...]  # the column a of every committed row, read by other means than the sink
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import pytest

from ...dataplane.columns import Columns, from_ddl, to_arrow
from ...dataplane.errors import OffsetConflict, SinkError
from ...dataplane.ownership import Owner, Range
from ...dataplane.sink import AdvancingStore, PositionStore, Sink
from ...errors import Fenced

if TYPE_CHECKING:
    import pyarrow as pa


def owner(token: int, *, task: int = 0, tasks: int = 1, source: str = "numbers") -> Owner:
    """A task of the connector ``c`` under a fencing token."""
    return Owner(connector="c", task=task, tasks=tasks, fencing_token=token, source=source)


def span(start: int, end: int, slice_name: str = "s") -> list[Range]:
    """One range of one slice."""
    return [Range(slice=slice_name, start=start, end=end)]


def every(slice_name: str) -> bool:
    """A task that owns every slice."""
    return True


class SinkContract(ABC):
    """What a pipeline relies on: offsets with the rows, fencing, replay, and that a claim ends earlier owners."""

    contract_requires: ClassVar[tuple[str, ...]] = ("make_sink", "read")
    columns: ClassVar[Columns] = from_ddl("a INT, b STRING")

    @abstractmethod
    def make_sink(self, place: Path) -> Sink:
        """Open the same sink: each call is another worker that writes to the same place.

        Args:
            place: a directory, new for each test; a sink elsewhere uses it as a name.
        """

    @abstractmethod
    def read(self, place: Path) -> list[int]:
        """Return the column ``a`` of every committed row, read by other means than the sink."""

    def open_positions(self, place: Path) -> PositionStore | None:
        """Open the positions of the sink for operators (``Sink.open_positions``); None if it does not offer them."""
        return None

    @pytest.fixture
    def positions(self, place: Path) -> Iterator[PositionStore]:
        """The positions for operators; skips the test if the sink does not offer them."""
        store = self.open_positions(place)
        if store is None:
            pytest.skip("the sink does not offer its positions")
        yield store
        store.close()

    @pytest.fixture
    def place(self, tmp_path: Path) -> Path:
        return tmp_path

    def rows(self, *values: int) -> pa.Table:
        """Rows of ``columns`` with these values of ``a``."""
        import pyarrow as pa

        return pa.table({"a": list(values), "b": [f"row {n}" for n in values]}, schema=to_arrow(self.columns))

    def written(self, place: Path) -> list[int]:
        """The committed values of ``a``, sorted."""
        return sorted(self.read(place))

    def test_claim_of_a_new_connector_has_no_positions(self, place: Path) -> None:
        sink = self.make_sink(place)
        assert sink.claim(owner(1), every) == {}
        sink.close()

    def test_next_owner_continues_where_the_last_commit_ended(self, place: Path) -> None:
        first, second = self.make_sink(place), self.make_sink(place)
        first.claim(owner(1), every)
        assert first.commit(owner(1), [*span(0, 8), *span(0, 3, "t")], self.rows(1, 2)) is True
        assert first.commit(owner(1), span(8, 12), self.rows(3)) is True
        assert second.claim(owner(2), every) == {"s": 12, "t": 3}
        assert second.commit(owner(2), span(12, 13), self.rows(4)) is True
        assert self.written(place) == [1, 2, 3, 4]
        first.close()
        second.close()

    def test_batch_without_rows_advances_the_offsets(self, place: Path) -> None:
        sink = self.make_sink(place)
        sink.claim(owner(1), every)
        assert sink.commit(owner(1), span(0, 4), self.rows()) is True
        assert sink.claim(owner(1), every) == {"s": 4}
        sink.close()

    def test_position_0_of_a_slice_is_kept(self, place: Path) -> None:
        """A source that begins at the end of an empty slice knows it again."""
        sink = self.make_sink(place)
        sink.claim(owner(1), every)
        sink.commit(owner(1), [*span(0, 0), *span(0, 3, "t")], self.rows(1))
        sink.commit(owner(1), span(0, 0, "u"), self.rows())
        sink.commit(owner(1), span(0, 0, "u"), self.rows())
        assert sink.claim(owner(1), every) == {"s": 0, "t": 3, "u": 0}
        assert sink.commit(owner(1), span(0, 2), self.rows(2)) is True
        assert self.written(place) == [1, 2]
        sink.close()

    def test_lower_fencing_token_is_rejected_and_writes_nothing(self, place: Path) -> None:
        zombie, successor = self.make_sink(place), self.make_sink(place)
        zombie.claim(owner(1), every)
        zombie.commit(owner(1), span(0, 4), self.rows(1))
        assert successor.claim(owner(2), every) == {"s": 4}
        for ranges in (span(4, 8), span(0, 8, "new")):
            with pytest.raises(Fenced):
                zombie.commit(owner(1), ranges, self.rows(2))
        assert successor.commit(owner(2), span(4, 8), self.rows(2)) is True
        assert self.written(place) == [1, 2]
        zombie.close()
        successor.close()

    def test_lower_fencing_token_cannot_claim(self, place: Path) -> None:
        zombie, successor = self.make_sink(place), self.make_sink(place)
        successor.claim(owner(2), every)
        with pytest.raises(Fenced):
            zombie.claim(owner(1), every)
        # A claim that was rejected may have interrupted the rightful owner, but never taken its place.
        successor.close()
        successor = self.make_sink(place)
        successor.claim(owner(2), every)
        assert successor.commit(owner(2), span(0, 1), self.rows(1)) is True
        assert self.written(place) == [1]
        zombie.close()
        successor.close()

    def test_replay_of_a_committed_batch_is_a_no_op(self, place: Path) -> None:
        sink = self.make_sink(place)
        sink.claim(owner(1), every)
        assert sink.commit(owner(1), span(0, 4), self.rows(1)) is True
        assert sink.commit(owner(1), span(0, 4), self.rows(1)) is False
        assert self.written(place) == [1]
        sink.close()

    def test_batch_that_overlaps_or_leaves_a_gap_is_rejected(self, place: Path) -> None:
        sink = self.make_sink(place)
        sink.claim(owner(1), every)
        sink.commit(owner(1), span(0, 4), self.rows(1))
        for start, end in ((2, 6), (0, 6), (5, 6)):
            with pytest.raises(OffsetConflict):
                sink.commit(owner(1), span(start, end), self.rows(2))
        assert sink.commit(owner(1), span(4, 6), self.rows(2)) is True
        assert self.written(place) == [1, 2]
        sink.close()

    def test_commit_without_a_claim_is_rejected(self, place: Path) -> None:
        sink = self.make_sink(place)
        with pytest.raises((OffsetConflict, SinkError)):
            sink.commit(owner(1), span(0, 4), self.rows(1))
        sink.close()

    def test_slices_move_between_tasks_and_former_layouts_are_fenced(self, place: Path) -> None:
        former = [self.make_sink(place) for _ in range(2)]
        for task, sink in enumerate(former):
            who = owner(1, task=task, tasks=2)
            sink.claim(who, lambda name, task=task: name == str(task))  # type: ignore[misc]
            sink.commit(who, span(0, 4, str(task)), self.rows(task))
        now = self.make_sink(place)
        assert now.claim(owner(2), every) == {"0": 4, "1": 4}
        for task, sink in enumerate(former):
            with pytest.raises(Fenced):
                sink.commit(owner(1, task=task, tasks=2), span(4, 5, str(task)), self.rows(9))
        assert now.commit(owner(2), [*span(4, 5, "0"), *span(4, 5, "1")], self.rows(2)) is True
        assert self.written(place) == [0, 1, 2]
        for sink in (now, *former):
            sink.close()

    def test_tasks_of_one_layout_do_not_fence_each_other(self, place: Path) -> None:
        sinks = [self.make_sink(place) for _ in range(2)]
        owners = [owner(1, task=task, tasks=2) for task in range(2)]
        for who, sink in zip(owners, sinks, strict=True):
            sink.claim(who, lambda name, who=who: name == str(who.task))  # type: ignore[misc]
        for at in range(3):
            for who, sink in zip(owners, sinks, strict=True):
                assert sink.commit(who, span(at, at + 1, str(who.task)), self.rows(10 * who.task + at)) is True
        assert self.written(place) == [0, 1, 2, 10, 11, 12]
        for sink in sinks:
            sink.close()

    def test_connector_that_has_read_another_source_is_rejected(self, place: Path) -> None:
        sink = self.make_sink(place)
        sink.claim(owner(1), every)
        with pytest.raises(SinkError, match="numbers"):
            sink.claim(owner(2, source="letters"), every)
        sink.close()

    def test_nothing_is_committed_twice_whatever_owners_do(self, place: Path) -> None:
        """Handover after each commit, with a zombie that repeats and continues."""
        sinks: Sequence[Sink] = [self.make_sink(place) for _ in range(4)]
        end = 0
        for token, sink in enumerate(sinks, start=1):
            assert sink.claim(owner(token), every).get("s", 0) == end
            assert sink.commit(owner(token), span(end, end + 1), self.rows(end)) is True
            end += 1
            for old_token, old in enumerate(sinks[: token - 1], start=1):
                with pytest.raises(Fenced):
                    old.commit(owner(old_token), span(end, end + 1), self.rows(end))
        assert self.written(place) == [*range(end)]
        for sink in sinks:
            sink.close()

    def test_positions_are_shown_without_a_claim(self, place: Path, positions: PositionStore) -> None:
        assert positions.positions("c") == {}
        sink = self.make_sink(place)
        sink.claim(owner(1), every)
        sink.commit(owner(1), [*span(0, 8), *span(0, 3, "t")], self.rows(1))
        assert positions.positions("c") == {"s": 8, "t": 3}
        assert positions.positions("d") == {}
        assert sink.commit(owner(1), span(8, 9), self.rows(2)) is True
        sink.close()

    def test_altered_positions_are_those_of_the_next_owner(self, place: Path, positions: PositionStore) -> None:
        """KIP-875. Positions that are not named stay."""
        sink = self.make_sink(place)
        sink.claim(owner(1), every)
        sink.commit(owner(1), [*span(0, 8), *span(0, 3, "t"), *span(0, 4, "u")], self.rows(1))
        for _ in range(2):
            positions.alter("c", 2, {"s": 5, "t": None, "new": 7})
            assert positions.positions("c") == {"s": 5, "u": 4, "new": 7}
        assert sink.claim(owner(3), every) == {"s": 5, "u": 4, "new": 7}
        assert sink.commit(owner(3), [*span(5, 6), *span(0, 1, "t")], self.rows(2)) is True
        assert self.written(place) == [1, 2]
        sink.close()

    def test_altered_positions_fence_every_earlier_task(self, place: Path, positions: PositionStore) -> None:
        """Also one that has not claimed yet, and one of an earlier layout."""
        zombies = [self.make_sink(place) for _ in range(3)]
        former, running, late = owner(1, tasks=2), owner(2), owner(2, task=1, tasks=2)
        for who, sink in ((former, zombies[0]), (running, zombies[1])):
            sink.claim(who, every)
            sink.commit(who, span(who.fencing_token - 1, who.fencing_token), self.rows(who.fencing_token))
        positions.alter("c", 3, {"s": 0})
        with pytest.raises(Fenced):
            zombies[0].commit(former, span(1, 2), self.rows(9))
        with pytest.raises(Fenced):
            zombies[1].commit(running, span(2, 3), self.rows(9))
        with pytest.raises(Fenced):
            zombies[2].claim(late, every)
        assert positions.positions("c") == {"s": 0}
        assert self.written(place) == [1, 2]
        for sink in zombies:
            sink.close()

    def test_positions_of_a_later_owner_are_not_altered(self, place: Path, positions: PositionStore) -> None:
        sink = self.make_sink(place)
        sink.claim(owner(4), every)
        sink.commit(owner(4), span(0, 8), self.rows(1))
        for change in ({"s": 0}, None):
            with pytest.raises(Fenced):
                positions.alter("c", 3, change)
        assert positions.positions("c") == {"s": 8}
        assert sink.commit(owner(4), span(8, 9), self.rows(2)) is True
        sink.close()

    def test_reset_forgets_positions_and_source(self, place: Path, positions: PositionStore) -> None:
        sink = self.make_sink(place)
        sink.claim(owner(1), every)
        sink.commit(owner(1), [*span(0, 8), *span(0, 3, "t")], self.rows(1))
        positions.alter("c", 2, None)
        assert positions.positions("c") == {}
        with pytest.raises(Fenced):
            sink.commit(owner(1), span(8, 9), self.rows(2))
        assert sink.claim(owner(3, source="letters"), every) == {}
        assert sink.commit(owner(3, source="letters"), span(0, 1), self.rows(2)) is True
        assert self.written(place) == [1, 2]
        sink.close()

    def test_positions_may_be_set_before_the_first_task(self, place: Path, positions: PositionStore) -> None:
        positions.alter("c", 2, {"s": 5})
        sink = self.make_sink(place)
        assert sink.claim(owner(3), every) == {"s": 5}
        sink.close()

    def test_positions_may_be_advanced_before_the_sink_is_opened(self, place: Path, positions: PositionStore) -> None:
        """By the owner of a task that has read records without rows, so that it knows no columns."""
        if not isinstance(positions, AdvancingStore):
            return  # they wait for the first row
        positions.advance(owner(2), [*span(0, 3), *span(0, 1, "t")])
        positions.advance(owner(2), span(3, 5))
        assert positions.positions("c") == {"s": 5, "t": 1}
        with pytest.raises(OffsetConflict):
            positions.advance(owner(2), span(4, 6))
        with pytest.raises(Fenced):
            positions.advance(owner(1), span(5, 6))
        sink = self.make_sink(place)
        with pytest.raises(Fenced):
            sink.claim(owner(1), every)
        assert sink.claim(owner(2), every) == {"s": 5, "t": 1}
        assert sink.commit(owner(2), span(5, 6), self.rows(1)) is True
        assert self.written(place) == [1]
        sink.close()

    def test_close_may_be_called_twice(self, place: Path) -> None:
        sink = self.make_sink(place)
        sink.close()
        sink.close()

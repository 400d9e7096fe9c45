"""Commits of a task: one at a time, in order, and none after one that failed."""

from __future__ import annotations

import threading

import pytest

from connectgroup.dataplane.errors import SinkError
from connectgroup.dataplane.source import CommitQueue
from tests.no_threads import NoThreads


class Commits:
    """A queue, and what its commits have done."""

    def __init__(self) -> None:
        self.done: list[int] = []
        self.failed: list[BaseException] = []
        self.may_end = threading.Event()
        self.queue = CommitQueue("commit", self.fail)

    def fail(self, error: BaseException) -> None:
        """Take the error, as a task does that ends the query: it waits for the thread that submits."""
        self.failed.append(error)
        self.queue.wait()

    def commit(self, number: int) -> None:
        assert self.may_end.wait(30)
        self.done.append(number)


def test_next_commit_begins_when_the_one_before_has_ended() -> None:
    commits = Commits()
    commits.queue.submit(lambda: commits.commit(1))
    assert commits.queue.is_busy
    threading.Timer(0.1, commits.may_end.set).start()
    commits.queue.submit(lambda: commits.done.append(2))
    commits.queue.wait()
    assert commits.done == [1, 2]
    assert not commits.queue.is_busy
    assert not commits.failed


def test_nothing_is_committed_after_a_commit_that_failed() -> None:
    commits, error = Commits(), SinkError("/out: cannot be written; allowed: free space")

    def fail() -> None:
        raise error

    commits.queue.submit(fail)
    with pytest.raises(SinkError, match="cannot be written"):
        commits.queue.submit(lambda: commits.done.append(2))
    assert commits.done == []
    assert commits.failed == [error]


def test_commit_without_a_thread_is_an_error_and_leaves_none_in_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    commits = Commits()
    none = NoThreads(monkeypatch, "commit")
    with pytest.raises(RuntimeError, match="can't start new thread"):
        commits.queue.submit(lambda: commits.done.append(1))
    commits.queue.wait()
    none.over()
    commits.queue.submit(lambda: commits.done.append(2))
    commits.queue.wait()
    assert commits.done == [2]

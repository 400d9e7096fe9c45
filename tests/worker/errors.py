"""Exceptions for user code that misbehaves."""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn


def raising(error: BaseException) -> Callable[[], NoReturn]:
    """A hook that raises this exception."""

    def hook() -> NoReturn:
        raise error

    return hook


class Odd(BaseException):
    """Not an Exception."""

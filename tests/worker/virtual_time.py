"""The event loop of these tests: the one that ships with the library."""

from __future__ import annotations

from connectgroup.testing.virtual_time import Gate as Gate, VirtualLoop as VirtualLoop

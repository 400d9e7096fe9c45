"""Maps the files of a directory to slices: a slice keeps its file when the file is renamed.

A slice has the name under which its file was first read. If another file has that name later, its slice is the name
with ``#2``, ``#3`` and so on; all of them belong to the same task.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from ...dataplane.real_paths import open_below
from .copies import Copies
from .identity import HEAD_BYTES, Identity, IdentityMode, Index, identities_in, stats_of
from .packed import codec_of, decompressed_head

_DIGIT: Final = re.compile(r"[0-9]")
_NUMBER_AT_END: Final = re.compile(r"[.-]?[0-9]+$")
_CIRCLE: Final = 1 << 64
_GOLDEN: Final = 0x9E37_79B9_7F4A_7C15
"""The golden ratio's fraction of the circle, as an odd number: so its powers differ."""


def is_slice_of(name: str, task: int, tasks: int) -> bool:
    """Whether a slice belongs to a task: by its name without ``#2``, the same in every process, always.

    The tasks divide a circle. A digest of the name without its digits is a point on it, and each digit turns the point
    by a multiple of a constant of its place. So files that are numbered or dated follow each other around the circle at
    the golden angle, and each task gets nearly as many as any other. By a digest of the whole name they would be as
    uneven as dice, and by the number modulo the tasks all on one task if only each tenth number exists.
    """
    if tasks == 1:
        return task == 0
    base = _without_generations(name)
    text = _DIGIT.sub("0", base).encode("utf-8", "surrogateescape")
    point = int.from_bytes(hashlib.blake2b(text, digest_size=8).digest())
    turn = 1
    for digit in reversed(_DIGIT.findall(base)):
        turn = turn * _GOLDEN % _CIRCLE
        point += int(digit) * turn
    return point % _CIRCLE * tasks // _CIRCLE == task


def _without_generations(name: str) -> str:
    """A name without ``#2`` at its end, and without all of them in ``a#2#2``. From the end: a name may be long."""
    end = len(name)
    while True:
        at = end
        while at and name[at - 1].isdecimal():
            at -= 1
        if at == end or not at or name[at - 1] != "#":
            return name[:end]
        end = at - 1


def _generation(name: str) -> int:
    """Return the number of a slice among those of one name."""
    number = name.rpartition("#")[2] if "#" in name else ""
    return int(number) if number.isdecimal() else 1


class Catalog:
    """The slices of one task, and the files they are.

    Attributes:
        stats: status of each file of this task, as of the last call of ``slices``.
        rewritten: files whose name is that of a slice, and whose content is not: file to slice.
    """

    def __init__(
        self,
        root: Path,
        positions: Mapping[str, int],
        owns: Callable[[str], bool],
        others: Callable[[], Mapping[str, int]] | None = None,
        mode: IdentityMode = "content",
        *,
        settle_ms: int = 0,
        has_header: bool = False,
    ) -> None:
        """Store the arguments.

        Args:
            root: the directory.
            positions: the position of each slice of this task; its metadata have the file's identity.
            owns: whether a slice belongs to this task.
            others: returns the committed positions of all tasks. Null: this task is the only one.
            mode: what makes a file the one that was read before.
            settle_ms, has_header: as in ``Copies``.
        """
        self._root, self._owns, self._others, self._mode = root, owns, others, mode
        self._identities = identities_in(positions)
        self._file_of = {name: self._identities[name].file if name in self._identities else name for name in positions}
        # The inode of a file that was renamed and not read since then, or that is the copy of a log.
        self._moved: dict[str, int] = {}
        self._lost: set[str] = set()
        self._inodes: dict[str, int] = {}
        self._ever: set[int] = set()
        self._suspected: set[str] = set()
        self._maybe_packed: set[str] = set()
        self._packed: set[str] = set()
        self._theirs: dict[str, tuple[int, Identity]] = {}
        self._own: dict[str, int] = {}
        self._their_index: Index | None = None
        self._own_index: Index | None = None
        settle_ms = settle_ms if mode == "content" else 0
        self._copies = Copies(root, settle_ms, has_header=has_header, has_read_before=self._has_read_before)
        self._had_positions: bool | None = True if positions else None
        self.stats: dict[str, os.stat_result] = {}
        self.rewritten: dict[str, str] = {}

    def _has_read_before(self) -> bool:
        if self._had_positions is None:
            self._had_positions = self._others is not None and bool(self._others())
        return self._had_positions

    def slices(self, inodes: Mapping[str, int]) -> dict[str, str]:
        """Return the slice of each file that this task reads.

        Args:
            inodes: the inodes of all files of the directory, also those of other tasks, by name.
        """
        self._their_index = self._own_index = None
        self._suspect(inodes)
        self._copies.note(inodes)
        names = sorted(inodes)
        known = set(self._file_of.values())
        mine = {name for name in names if name not in known and self._owns(name)}
        self.stats = stats_of(self._root, [name for name in names if name in known or name in mine])
        found = self._unchanged(inodes)
        fresh = [name for name in names if name not in self._inodes and name not in found]
        lost = {name for name, file in self._file_of.items() if found.get(file) != name and name in self._identities}
        if lost - self._lost:  # Each file may be one of them, also those that other slices have had.
            fresh = [name for name in names if name not in found]
        self._lost = lost
        if lost and fresh and self._mode != "name":
            self._find_renamed(fresh, found, inodes)
        self._inodes = dict(inodes)
        self._ever.update(inodes.values())
        former = {file: name for name, file in self._file_of.items() if name in self._lost}
        self.rewritten = {}
        for name in names:
            if name not in found and (name in mine or (name in known and self._owns(name))):
                if name in former and self._is_rewritten(name, former[name]) and not self._is_packed(former[name]):
                    self.rewritten[name] = former[name]
                found[name] = self.new_slice(name)
        return found

    def remember(self, name: str, identity: Identity) -> None:
        """Store the identity of a slice's file after a part of it has been read."""
        self._identities[name], self._file_of[name] = identity, identity.file
        self._moved.pop(name, None)

    def identity(self, name: str) -> Identity | None:
        """Return the identity of a slice's file as it was last committed or read."""
        return self._identities.get(name)

    def belongs_to_another(self, file: str) -> bool:
        """Whether another task has read a file under the name it had before."""
        found = self.stats.get(file)
        if self._others is None or found is None or self._mode == "name":
            return False
        # A rename is no change of the content. This task may not have seen the former name: another one was faster.
        if found.st_ctime_ns > found.st_mtime_ns and self._own.get(file) != found.st_ino:
            self._suspected.add(file)
        if file not in self._suspected:
            return False
        inode, theirs = self._theirs.get(file, (0, None))
        if theirs is not None and inode == found.st_ino and theirs.is_in(self._root, file, found):
            return True
        if self._their_index is None:
            self._their_index = Index(self._identities_of_others().items())

        def may_be(_: str, identity: Identity) -> bool:
            was_truncated = self._inodes.get(identity.file) == identity.inode
            return identity.may_be_renamed_to(found, self._mode, was_truncated=was_truncated)

        for _, identity in self._their_index.find(self._root, file, may_be):
            former = self._root / identity.file
            try:
                status = former.stat()
                is_copy = status.st_ino != found.st_ino and identity.is_in(self._root, identity.file, status)
            except OSError:
                is_copy = False
            if not is_copy:
                self._theirs[file] = found.st_ino, identity
                return True
        self._suspected.discard(file)
        self._own[file] = found.st_ino
        return False

    def may_be_copy(self, file: str) -> bool:
        """Whether a file of which nothing was read may be the copy of a log, and is not to be read now.

        Either another file begins with all of it, so that this one may be truncated next, or a file of this task was
        truncated since ``slices`` looked at it.
        """
        found = self.stats.get(file)
        if found is None:
            return False
        if not self._copies.may_be(file, found, is_rewritten=file in self.rewritten):
            if self._copies.was_missed(file):
                self._suspected.add(file)
                self._maybe_packed.add(file)
            return False
        if self._copies.has_original(file, found):
            self._suspected.add(file)
            self._maybe_packed.add(file)
            return True
        if self._others is not None and file not in self._suspected and self._copies.has_changed_start():
            # Each new file: the next one learns of no change.
            new = self._inodes.keys() - set(self._file_of.values()) | {file}
            self._suspected |= new
            self._maybe_packed |= new
        if self._own_index is None:
            self._own_index = Index(self._identities.items())

        def may_be(_: str, identity: Identity) -> bool:
            is_listed = identity.file != file and self._inodes.get(identity.file) == identity.inode
            return is_listed and identity.may_be_renamed_to(found, self._mode, was_truncated=is_listed)

        return any(not self._has_file(identity) for _, identity in self._own_index.find(self._root, file, may_be))

    def packed(self, file: str, codec: str) -> tuple[str, int] | None:
        """Return the slice whose file a new compressed file was made of, and the bytes that were read of that.

        None if it was made of none. That file is gone, or has the name without the ending. A rotated log is compressed
        after it was read: without this, it would be read again.
        """
        if self._mode != "content":
            return None
        known = dict(self._identities)
        lost = {name for name in known if name in self._lost or self._file_of[name] not in self._inodes}
        if self._others is not None and file in self._maybe_packed:
            self._maybe_packed.discard(file)
            theirs = self._identities_of_others()
            lost |= {name for name, identity in theirs.items() if not self._has_file(identity)}
            known |= theirs
        taken = {identity.packed_from for identity in known.values()}
        plain = file.rpartition(".")[0]
        choice = [
            (name, identity)
            for name, identity in known.items()
            if identity.read and name not in taken and (name in lost or self._file_of.get(name, identity.file) == plain)
        ]
        if not choice:
            return None
        try:
            with open_below(self._root, file) as opened:
                head = decompressed_head(opened, codec, HEAD_BYTES)
            for name, identity in sorted(choice, key=lambda each: -each[1].read):
                if identity.begins_with(head):
                    with open_below(self._root, file) as opened:
                        if identity.has_content_of_packed(opened, codec):
                            return name, identity.read
        except OSError:
            pass  # The planner reports the error when it opens the file.
        return None

    def _identities_of_others(self) -> dict[str, Identity]:
        assert self._others is not None
        return identities_in({name: at for name, at in self._others().items() if not self._owns(name)})

    def _has_file(self, identity: Identity) -> bool:
        """Whether the file of a slice still has its name."""
        try:
            found = (self._root / identity.file).stat()
        except OSError:
            return False
        return identity.is_in(self._root, identity.file, found)

    def _is_rewritten(self, file: str, name: str) -> bool:
        """Whether a file was rewritten in place; by inode, one that has replaced another is a new file."""
        identity, found = self._identities.get(name), self.stats.get(file)
        return self._mode != "inode" or identity is None or found is None or found.st_ino == identity.inode

    def _suspect(self, inodes: Mapping[str, int]) -> None:
        """Note the new names of which another task may have read the file: to ask the sink for each would be slow.

        Those whose inode has been seen before; and all, if a name has vanished or has another file: that one may have
        been moved from another disk. ``belongs_to_another`` adds those that were renamed before they were seen.
        """
        is_new = {name: inode for name, inode in inodes.items() if self._inodes.get(name) != inode}
        has_moved = not self._inodes or any(inodes.get(name) != inode for name, inode in self._inodes.items())
        suspected = {name for name, inode in is_new.items() if has_moved or inode in self._ever}
        self._suspected = (self._suspected | suspected) & inodes.keys()
        self._maybe_packed = (self._maybe_packed | suspected) & inodes.keys()

    def _unchanged(self, inodes: Mapping[str, int]) -> dict[str, str]:
        """Return the slices whose file still has its name, by file."""
        found: dict[str, str] = {}
        everywhere, superseded = set(inodes.values()), self._superseded()
        for name, file in self._file_of.items():
            if file not in inodes:
                continue
            identity, status = self._identities.get(name), self.stats.get(file)
            if not (identity is None or status is None or identity.is_unchanged(status)):
                inode = self._moved.get(name, identity.inode)
                has_other_inode = status.st_ino != inode
                if name in superseded or (has_other_inode and self._mode == "inode"):
                    continue
                if has_other_inode and self._mode == "content" and inode in everywhere:
                    continue  # Renamed: the file that has the name now only begins in the same way.
                if not identity.is_in(self._root, file, status):
                    continue
            other = self._identities.get(found.get(file, ""))
            # Two slices of one name, and what was read of the one is the beginning of the other.
            is_longer = identity is not None and (other is None or other.read < identity.read)
            if file not in found or is_longer or found[file] in superseded:
                found[file] = name
        return found

    def _superseded(self) -> set[str]:
        """Return the slices whose file has the name of a later slice, which was rewritten in place or replaced it."""
        families: dict[str, list[str]] = {}
        for name in self._file_of:
            if "#" in name and (base := _without_generations(name)) != name:
                families.setdefault(base, [base] if base in self._file_of else []).append(name)
        found: set[str] = set()
        for family in families.values():
            files: set[str] = set()
            for name in sorted(family, key=_generation, reverse=True):
                if self._file_of[name] in files:
                    found.add(name)
                files.add(self._file_of[name])
        return found

    def _find_renamed(self, files: Sequence[str], found: dict[str, str], inodes: Mapping[str, int]) -> None:
        index = Index((name, self._identities[name]) for name in self._lost)
        for file, status in stats_of(self._root, files).items():

            def may_be(name: str, identity: Identity, file: str = file, status: os.stat_result = status) -> bool:
                if name not in self._lost or self._file_of[name] == file:
                    return False
                was_truncated = inodes.get(identity.file) == identity.inode
                return identity.may_be_renamed_to(status, self._mode, was_truncated=was_truncated)

            # The inode first: several lost slices may have begun with the same bytes.
            matches = [
                (identity.inode != status.st_ino, name) for name, identity in index.find(self._root, file, may_be)
            ]
            if matches:
                name = min(matches)[1]
                self._lost.discard(name)
                self._file_of[name], found[file], self.stats[file] = file, name, status
                self._moved[name] = status.st_ino

    def _is_packed(self, name: str) -> bool:
        """Whether a file that is gone or was truncated has been compressed before, to its name and more, or to a later
        number (``app.log-1.gz``; of ``app.log.1``, ``app.log.2.gz``), maybe of another task."""
        if self._mode != "content":
            return False
        identity = self._identities[name]
        if name in self._packed or any(other.packed_from == name for other in self._identities.values()):
            return True
        stem = _NUMBER_AT_END.sub("", identity.file) or identity.file
        for file in self._inodes:
            if file.startswith(stem) and (codec := codec_of(file)):
                try:
                    with open_below(self._root, file) as opened:
                        if identity.has_content_of_packed(opened, codec):
                            self._packed.add(name)
                            return True
                except OSError:
                    continue
        return False

    def copy_of(self, name: str) -> str:
        """Return the file of another slice that has what was read of a slice; empty if there is none."""
        identity = self._identities[name]
        for other, found in self._identities.items():
            if other != name and found.read >= identity.read and found.file != identity.file:
                try:
                    with open_below(self._root, found.file) as file:
                        if identity.has_content_of(file.fileno()):
                            return found.file
                except OSError:
                    continue
        return ""

    def new_slice(self, file: str) -> str:
        """Return the name of the slice that a file will be when a part of it has been read."""
        name, generation = file, 1
        while name in self._file_of:
            generation += 1
            name = f"{file}#{generation}"
        return name

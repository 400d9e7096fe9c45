"""One deliberate breakage, as data."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """One place of the product put wrong.

    Attributes:
        name: what is wrong then, as a sentence.
        file: path below the repository.
        old: text that occurs exactly once in the file.
        new: what stands there instead; the file still compiles.
        tests: pytest's paths or ids, with blanks between, that must not pass then: those nearest to the place first.
    """

    name: str
    file: str
    old: str
    new: str
    tests: str

    def applied(self, text: str) -> str:
        """The file's text, broken.

        Raises:
            ValueError: ``old`` is not in it exactly once: the list is out of date.
        """
        found = text.count(self.old)
        if found != 1:
            raise ValueError(f"mutant {self.name!r}: {self.file} has its old text {found} times; allowed: once")
        return text.replace(self.old, self.new)

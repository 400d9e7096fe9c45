"""The settings of the source ``files``."""

from __future__ import annotations

import zoneinfo
from typing import Annotated, Any, Final, Literal

from pydantic import Field

from ...connector import LocalPath
from ...dataplane.columns import from_ddl
from ...dataplane.settings import PluginSettings, require_absolute
from ...errors import ConfigError
from .dialect import ENCODINGS, Drift, Format, LineDialect, checked_encoding, is_wide
from .identity import IdentityMode
from .planner import FileRules

IDENTITY: Final = (
    "content, name, inode: what makes a file the one that was read before, so that only what follows is read. It begins"
    " with what was read and: content: has its name, or was renamed (with its inode, or with its time of change and"
    " nothing new), or is the copy or the compressed file that a log was rotated to; name: has its name; a file of"
    " another name is read from its start, also a renamed one; inode: has its inode; a file that takes the place of"
    " another one is read from its start, also one that begins in the same way. The offsets show the file of a slice"
    " that has another name"
)
MAX_PATTERN: Final = 1_000
"""Characters of a glob: Python translates one in time quadratic in its brackets."""
ON_REWRITE: Final = (
    "fail, read: whether a file that no longer begins with what was read of it fails the task or is read as a new file"
)


class FileSettings(PluginSettings):
    """Settings of the source ``files``, each with the prefix ``source.``."""

    path: Annotated[str, LocalPath(), Field(min_length=1, description="a directory, as an absolute path")]
    format: Annotated[
        Format,
        Field(
            description="csv, jsonl, text: each line is the column value. Files named .gz or .zst are decompressed;"
            " each is read in one batch, when it is complete"
        ),
    ]
    schema_: Annotated[
        str | None,
        Field(
            alias="schema",
            description="columns as NAME TYPE, separated by commas. By default those of a csv header, as STRING, or the"
            " fields of the first json lines, taken once and stored with the offsets. Nested json is STRING: its text",
        ),
    ] = None
    schema_drift: Annotated[
        Drift | None,
        Field(
            description="error, ignore, evolve: columns or fields that the schema does not have. ignore and evolve find"
            " csv columns by their names; evolve adds new ones and restarts the task: those of csv as STRING; a batch"
            " of jsonl has 4 MiB at most then. By default error for csv, ignore for jsonl"
        ),
    ] = None
    file_pattern: Annotated[
        str,
        Field(
            max_length=MAX_PATTERN,
            description="a glob for names of files, such as *.csv, or with a / for paths below the directory; at most"
            f" {MAX_PATTERN} characters",
        ),
    ] = ""
    delimiter: Annotated[str, Field(description="csv: the character between fields; \\t is a tab")] = ","
    quote: Annotated[
        str, Field(description="csv: the character around fields; none: quotes are ordinary characters")
    ] = '"'
    multiline: Annotated[
        bool,
        Field(
            description="true, false: csv: whether a quoted field may contain line feeds. A quote that is not closed is"
            " an error when the file has not been modified for source.final.newline.ms"
        ),
    ] = False
    decimal: Annotated[Literal[".", ","], Field(description="csv: . or , as the decimal point")] = "."
    null: Annotated[
        str, Field(description="a word that means null in a csv field without quotes, beside the empty field")
    ] = ""
    timezone: Annotated[
        str,
        Field(description="the zone of timestamps without one, such as Europe/Berlin; by default they are invalid"),
    ] = ""
    encoding: Annotated[str, Field(description=ENCODINGS)] = "utf-8"
    final_newline: Annotated[
        Literal["wait", "accept"],
        Field(
            description="wait, accept: whether a last line without a line feed waits for it, or is read when the file"
            " has not been modified for source.final.newline.ms. A compressed file that is incomplete is an error then"
        ),
    ] = "wait"
    final_newline_ms: Annotated[int, Field(ge=0, le=604_800_000, description="0 to 604800000")] = 60_000
    identity: Annotated[IdentityMode, Field(description=IDENTITY)] = "content"
    on_rewrite: Annotated[Literal["fail", "read"], Field(description=ON_REWRITE)] = "fail"
    settle_ms: Annotated[
        int,
        Field(
            ge=0,
            le=604_800_000,
            description="0 to 604800000: the settle window: with source.identity=content, a new file whose content"
            " another file begins with is read this long after its last change. It may be the copy of a log that is"
            " truncated next (copytruncate): if that happens in the window, its rows are read once. Longer than from"
            " the last byte of a copy to the truncation; 0: such a file is read at once",
        ),
    ] = 5000
    max_bytes_per_batch: Annotated[
        int,
        Field(
            ge=1024,
            le=256 << 20,
            description="1024 to 268435456; without it, up to 134217728 are read for a sink of files if there are no"
            " transforms: Spark's workers write them, 16 MiB at once",
        ),
    ] = 32 << 20

    def model_post_init(self, _: Any) -> None:
        """Check the path, the schema and the settings that depend on the format.

        Raises:
            ConfigError: the path is relative, or the schema or another setting is not valid.
        """
        require_absolute("source.path", self.path, "a directory, as an absolute path")
        if self.schema_ is not None:
            if self.format == "text":
                raise ConfigError("source.schema", self.schema_, "nothing with source.format text")
            from_ddl(self.schema_)
        if self.schema_drift == "evolve" and self.format == "text":
            raise ConfigError("source.schema.drift", "evolve", "nothing with source.format text")
        try:
            is_evolving = is_wide(checked_encoding(self.encoding)) and self.schema_drift == "evolve"
        except ValueError:
            raise ConfigError("source.encoding", self.encoding, ENCODINGS) from None
        if is_evolving:
            raise ConfigError("source.schema.drift", "evolve", f"error or ignore with source.encoding {self.encoding}")
        self._check_csv()
        check_timezone(self.timezone)

    @property
    def dialect(self) -> LineDialect:
        """How the lines of the files are written."""
        return LineDialect(
            form=self.format,
            null=self.null,
            delimiter=_character(self.delimiter),
            quote="" if self.quote == "none" else self.quote,
            multiline=self.multiline,
            decimal=self.decimal,
            timezone=self.timezone,
            encoding=checked_encoding(self.encoding),
            drift=self.schema_drift,
        )

    @property
    def rules(self) -> FileRules:
        """Which files are read, and what becomes of unusual ones."""
        return FileRules(
            pattern=self.file_pattern,
            identity=self.identity,
            on_rewrite=self.on_rewrite,
            final_newline=self.final_newline,
            final_newline_ms=self.final_newline_ms,
            settle_ms=self.settle_ms,
            has_header=self.format == "csv",
            quote=self.dialect.separator,
            wide=self.dialect.encoding if is_wide(self.dialect.encoding) else "",
            is_utf8=self.dialect.encoding == "utf-8",
        )

    def _check_csv(self) -> None:
        one = "one ASCII character that is not a letter, a digit or a line break"
        delimiter = _character(self.delimiter)
        if not _is_separator(delimiter) or delimiter == self.decimal == ",":
            raise ConfigError("source.delimiter", self.delimiter, f"{one}, and not the decimal point")
        if self.quote != "none" and (not _is_separator(self.quote) or self.quote == delimiter):
            raise ConfigError("source.quote", self.quote, f"{one}, and not the delimiter; or none")
        if self.multiline and (self.format != "csv" or self.quote == "none"):
            raise ConfigError("source.multiline", "true", "false, or source.format csv with quotes")


def _character(text: str) -> str:
    return "\t" if text in ("\\t", "tab") else text


def _is_separator(text: str) -> bool:
    return len(text) == 1 and text.isascii() and not text.isalnum() and text not in "\r\n\0"


def check_timezone(name: str) -> None:
    """Check ``source.timezone``; an empty name is none.

    Raises:
        ConfigError: there is no such zone.
    """
    try:
        if name:
            zoneinfo.ZoneInfo(name)
    except (ValueError, OSError, zoneinfo.ZoneInfoNotFoundError) as error:
        allowed = "the name of a time zone, such as Europe/Berlin or UTC"
        raise ConfigError("source.timezone", name, allowed) from error

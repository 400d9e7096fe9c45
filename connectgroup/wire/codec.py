"""Compiles a message definition into two functions, ``encode`` and ``decode``, by generating Python source.

There is one pair per message and version. The generated source is straight-line code: neighbouring numbers use one
``struct`` call, lengths below 128 need no call, and a version or a tag that does not apply generates no code. The
source is generated from this package's own definition files only; no external input reaches the compiler. Reason to
generate: interpreting a definition costs about ten times as much, and in hand-written code for 30 messages some checks
would be forgotten.

Contract of the generated functions, for any input bytes: ``decode`` returns a message or raises ``WireError``, and
allocates nothing before the length has been checked against the bytes that remain (KAFKA-20570) and against the limits
that the definition declares (``maxLength``, ``maxElements``, ``maxTotal``). ``encode`` raises ``WireError`` with the
field's name for a value that the field cannot hold; it does not check the declared limits.

The field at fault is found from the line of generated code that failed: the code contains no names and no checks for
the sake of messages: it is fast because it simply fails, with an ``IndexError`` or a ``struct.error``. Each of its
lines belongs to one field (or a few), so the traceback *is* the path to the fault, from the message down to the field,
and costs nothing until it is read.
"""

from __future__ import annotations

import linecache
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from types import FrameType, TracebackType
from typing import Any, Final

from ..errors import WireError
from . import primitives
from .definition import INTEGERS, Field, Message, Struct, smallest
from .primitives import WireFault

PRESENT: Final = b"\x01"
NULL_STRUCT: Final = b"\xff"
"""Markers before a nullable struct: present, and null (KIP-893)."""

_DECODING: Final = (WireFault, IndexError, struct.error, UnicodeDecodeError)
_ENCODING: Final = (WireFault, AttributeError, TypeError, ValueError, KeyError, OverflowError, struct.error)


class Codec:
    """Encoder and decoder of one message in one version, compiled when one of them is first used.

    A program uses few of some hundred codecs; compiling all of them takes longer than a short command.

    Attributes:
        name: the definition's name and the version; informational.
    """

    def __init__(self, message: Message, version: int) -> None:
        self.name = f"{message.name} v{version}"
        self._message, self._version = message, version

    @cached_property
    def encode(self) -> Callable[[Any], bytes]:
        """Message to bytes; WireError naming the field if a value does not fit."""
        return self._compiled[0]

    @cached_property
    def decode(self) -> Callable[[bytes, int], Any]:
        """Bytes and start position to message; WireError unless the bytes are exactly one message."""
        return self._compiled[1]

    @cached_property
    def source(self) -> str:
        """The generated Python source; informational."""
        return self._compiled[2]

    @cached_property
    def _compiled(self) -> tuple[Callable[[Any], bytes], Callable[[bytes, int], Any], str]:
        return _compile(self._message, self._version, self.name)


def compile_codec(message: Message, version: int) -> Codec:
    """The codec of ``message`` in ``version``, which must be one of its versions."""
    if version not in message.versions:
        raise AssertionError(f"{message.name}: no version {version}")
    return Codec(message, version)


def _compile(
    message: Message, version: int, name: str
) -> tuple[Callable[[Any], bytes], Callable[[bytes, int], Any], str]:
    writer = _Writer(version=version, flexible=version in message.flexible)
    writer.count_totals(message.body)
    writer.write(message.body)
    source, filename = "\n".join(writer.lines) + "\n", f"<wire {name}>"
    linecache.cache[filename] = (len(source), None, source.splitlines(keepends=True), filename)
    exec(compile(source, filename, "exec"), writer.names)
    encode_body, decode_body = writer.names[f"encode_{message.body.name}"], writer.names[f"decode_{message.body.name}"]
    lines = Lines(filename=filename, version=version, flexible=writer.flexible, fields=writer.fields)
    totals = tuple(writer.totals)

    def encode(value: Any) -> bytes:
        try:
            encoded: bytes = encode_body(value)
        except _ENCODING as error:
            raise WireError(f"{name}: {explain_encoding(error, lines)}") from error
        return encoded

    def decode(data: bytes, pos: int) -> Any:
        size = len(data)
        try:
            value, pos = decode_body(data, pos, size, list(totals)) if totals else decode_body(data, pos, size)
        except _DECODING as error:
            raise WireError(f"{name}: {explain_decoding(error, lines)}") from error
        if pos != size:
            raise WireError(f"{name}: {size - pos} bytes too many after its end at byte {pos}")
        return value

    return encode, decode, source


class _Writer:
    """Generates the source of one message in one version: ``encode_X(m)`` and ``decode_X(data, pos, size)`` per struct.

    If a field of the message declares ``maxTotal``, all decoding functions also take ``left``: for each such field, the
    number of elements that this message may still hold.
    """

    def __init__(self, *, version: int, flexible: bool) -> None:
        self.version, self.flexible = version, flexible
        self.totals: list[int] = []
        self._arguments = "data, pos, size"
        self.lines: list[str] = []
        self.fields: dict[int, tuple[Field, ...]] = {}
        self.names: dict[str, Any] = {name: getattr(primitives, name) for name in primitives.FOR_GENERATED_CODE}
        self.names |= {"unpack_from": struct.unpack_from, "pack": struct.pack}
        self._written: dict[str, Struct] = {}
        self._total_of: dict[tuple[str, str], int] = {}

    def put(self, indent: int, line: str, *fields: Field) -> None:
        """Append one line; ``fields`` are the fields to report if it fails."""
        self.lines.append("    " * indent + line)
        self.fields[len(self.lines)] = fields

    def default(self, of: Struct, field: Field) -> str:
        """The field's default as an expression of the generated module."""
        if field.default is None or field.array or field.struct is None:
            return repr(field.default)
        name = f"DEFAULT_{of.name}_{field.attribute}"
        self.names[name] = field.default
        return name

    def layout(self, letters: str) -> tuple[str, str, int]:
        """The names of the functions that pack and unpack these ``struct`` letters, and their size."""
        of = struct.Struct(">" + letters)
        suffix = letters.replace("?", "t")
        self.names[f"pack_{suffix}"], self.names[f"unpack_{suffix}"] = of.pack, of.unpack_from
        return f"pack_{suffix}", f"unpack_{suffix}", of.size

    def count_totals(self, of: Struct) -> None:
        """Find the fields that declare ``maxTotal``."""
        for field in of.fields:
            if self.version not in field.versions:
                continue
            key = of.name, field.attribute
            if field.max_total is not None and key not in self._total_of:
                self._total_of[key] = len(self.totals)
                self.totals.append(field.max_total)
                self._arguments = "data, pos, size, left"
            if field.struct is not None:
                self.count_totals(field.struct)

    def write(self, of: Struct) -> None:
        if of.name in self._written:
            if self._written[of.name] != of:
                raise AssertionError(f"{of.name}: two different structs of this name in one message")
            return
        self._written[of.name] = of
        for field in of.fields:
            if field.struct is not None and self.version in field.versions:
                self.write(field.struct)
        plain = [f for f in of.fields if self.version in f.versions and self.version not in f.tagged]
        tagged = [f for f in of.fields if self.version in f.tagged]
        absent = [f for f in of.fields if self.version not in f.versions and not f.true_in]
        self._encoder(of, plain, tagged, absent)
        self._decoder(of, plain, tagged, absent)

    # ----------------------------------------------------------------------------------------------
    # Encoding

    def _encoder(self, of: Struct, plain: list[Field], tagged: list[Field], absent: list[Field]) -> None:
        self.put(0, f"def encode_{of.name}(m):")
        for field in absent:
            if not field.ignorable:
                self.put(1, f"if m.{field.attribute} != {self.default(of, field)}:")
                allowed = f"its default in version {self.version}, which lacks it"
                self.put(2, f"raise WireFault(m.{field.attribute}, {allowed!r})", field)
        parts: list[str] = []
        for number, run in enumerate(_runs(plain)):
            if _fixed(run[0]):
                pack, _, _ = self.layout(_letters(run))
                self.put(1, f"p{number} = {pack}({', '.join(self._number(f) for f in run)})", *run)
                parts.append(f"p{number}")
            else:
                parts += self._encode_value(1, run[0], f"p{number}", f"v{number}")
        if self.flexible and tagged:
            self.put(1, "count = 0")
            self.put(1, 'tags = b""')
            for field in tagged:
                self.put(1, f"if m.{field.attribute} != {self.default(of, field)}:", field)
                self.put(2, "count += 1")
                self._encode_tagged(field)
            parts += ["SHORT[count]", "tags"]
        elif self.flexible:
            parts.append("SHORT[0]")
        whole = f'b"".join(({", ".join(parts)},))' if parts else 'b""'
        self.put(1, f"return {whole}", *(f for f in plain if not _fixed(f)))

    def _number(self, field: Field) -> str:
        if field.wire_type == "bool":
            return f"BOOL[m.{field.attribute}]"
        if field.choices is not None:
            return f"{self._choices(field)}[m.{field.attribute}]"
        return f"m.{field.attribute}"

    def _encode_tagged(self, field: Field) -> None:
        assert field.tag is not None
        if _fixed(field):
            pack, _, size = self.layout(_letters([field]))
            prefix = primitives.uvarint(field.tag) + primitives.uvarint(size)
            self.put(2, f"tags += {prefix!r} + {pack}({self._number(field)})", field)
        else:
            parts = self._encode_value(2, field, "p", "v")
            self.put(2, f"value = {' + '.join(parts)}", field)
            self.put(2, f"tags += {primitives.uvarint(field.tag)!r} + uvarint(len(value)) + value", field)

    def _encode_value(self, indent: int, field: Field, prefix: str, value: str) -> list[str]:
        """Leaves the length (or presence mark) in ``prefix`` and the rest in ``value``; returns which of them exist."""
        at, whole_struct = f"m.{field.attribute}", field.wire_type == "struct" and not field.array
        if whole_struct and self.version not in field.nullable:
            self.put(indent, f"{value} = {self._encode_struct(field, at)}", field)
            return [value]
        if field.wire_type == "uuid" and not field.array:
            self.put(indent, f"{value} = uuid_bytes({at})", field)
            return [value]
        if self.version in field.nullable:
            self.put(indent, f"if {at} is None:", field)
            self.put(indent + 1, f'{prefix}, {value} = {self._null(field)!r}, b""')
            self.put(indent, "else:")
            indent += 1
        if whole_struct:
            self.put(indent, f"{prefix}, {value} = {PRESENT!r}, {self._encode_struct(field, at)}", field)
        elif field.array:
            self.put(indent, f"n = len({at})", field)
            self._encode_length(indent, field, prefix)
            self.put(indent, f"{value} = {self._elements(field, at)}", field)
        else:
            self.put(indent, f"{value} = {at}{'.encode()' if field.wire_type == 'string' else ''}", field)
            self.put(indent, f"n = len({value})", field)
            self._encode_length(indent, field, prefix)
        return [prefix, value]

    def _encode_struct(self, field: Field, at: str) -> str:
        assert field.struct is not None
        return f"encode_{field.struct.name}({at})"

    def _null(self, field: Field) -> bytes:
        if field.wire_type == "struct" and not field.array:
            return NULL_STRUCT
        return b"\0" if self.flexible else struct.pack(">" + self._length_letter(field), -1)

    def _length_letter(self, field: Field) -> str:
        return "h" if field.wire_type == "string" and not field.array else "i"

    def _encode_length(self, indent: int, field: Field, prefix: str) -> None:
        if self.flexible:
            self.put(indent, f"{prefix} = SHORT[n + 1] if n < 127 else uvarint(n + 1)", field)
        else:
            pack, _, _ = self.layout(self._length_letter(field))
            self.put(indent, f"{prefix} = {pack}(n)", field)

    def _elements(self, field: Field, at: str) -> str:
        if field.struct is not None:
            return f'b"".join(map(encode_{field.struct.name}, {at}))'
        if field.wire_type in INTEGERS:
            return f'pack(f">{{n}}{INTEGERS[field.wire_type]}", *{at})'
        if field.wire_type == "uuid":
            return f'b"".join(map(uuid_bytes, {at}))'
        assert field.wire_type == "string", f"{field.attribute}: no arrays of {field.wire_type} here"
        return f'b"".join(map({"compact_string" if self.flexible else "classic_string"}, {at}))'

    # ----------------------------------------------------------------------------------------------
    # Decoding

    def _decoder(self, of: Struct, plain: list[Field], tagged: list[Field], absent: list[Field]) -> None:
        # A frozen dataclass sets each slot through object.__setattr__: 1.7 us for a heartbeat, more than everything
        # else. So the slots are filled in a class of the same layout that is not frozen; then the class is replaced.
        loose = type(of.cls.__name__, (), {"__slots__": of.cls.__slots__})
        self.names[f"Loose_{of.name}"], self.names[f"Class_{of.name}"] = loose, of.cls
        self.put(0, f"def decode_{of.name}({self._arguments}):")
        self.put(1, f"o = Loose_{of.name}()")
        for field in (*absent, *tagged):
            self.put(1, f"o.{field.attribute} = {self.default(of, field)}")
        for field in of.fields:
            if field.true_in:
                self.put(1, f"o.{field.attribute} = {self.version in field.true_in}")
        for run in _runs(plain):
            self._decode_run(1, run, of)
        if self.flexible and tagged:
            self._decode_tags(tagged, of)
        elif self.flexible:
            self.put(1, "if data[pos]:", *plain[-1:])
            self.put(2, "pos = skip_tags(data, pos, size)")
            self.put(1, "else:")
            self.put(2, "pos += 1")
        self.put(1, f"o.__class__ = Class_{of.name}")
        self.put(1, "return o, pos")

    def _decode_run(self, indent: int, run: list[Field], of: Struct) -> None:
        if not _fixed(run[0]):
            self._decode_value(indent, run[0], of)
            return
        _, unpack, size = self.layout(_letters(run, decoding=True))
        targets = ", ".join(f"o.{field.attribute}" for field in run)
        self.put(indent, f"{targets}{',' if len(run) == 1 else ''} = {unpack}(data, pos)", *run)
        self.put(indent, f"pos += {size}")
        for field in run:
            if field.choices is not None:
                choices = self._choices(field)
                self.put(indent, f"if o.{field.attribute} not in {choices}:")
                self.put(indent + 1, f"raise bad_choice(o.{field.attribute}, {choices})", field)
                self.put(indent, f"o.{field.attribute} = {choices}[o.{field.attribute}]")

    def _decode_tags(self, tagged: list[Field], of: Struct) -> None:
        self.put(1, "count = data[pos]")
        self.put(1, "pos += 1")
        self.put(1, "if count:")
        self.put(2, f"if count > {primitives.MAX_TAGS}:")
        self.put(3, "raise too_many_tags(count if count < 128 else read_uvarint(data, pos)[0])")
        self.put(2, "tag = -1")
        self.put(2, "for _ in range(count):")
        self.put(3, "last, tag, n = tag, data[pos], data[pos + 1]")
        self.put(3, "pos += 2")
        self.put(3, "if tag > 127 or n > 127:")
        self.put(4, "tag, n, pos = read_tag(data, pos - 2)")
        self.put(3, "begin, end = pos, pos + n")
        self.put(3, "if tag <= last or end > size:")
        self.put(4, "raise bad_tag(last, tag, n, size - begin)")
        for number, field in enumerate(tagged):
            self.put(3, f"{'if' if number == 0 else 'elif'} tag == {field.tag}:")
            self._decode_run(4, [field], of)
        self.put(3, "else:")
        self.put(4, "pos = end  # of a newer peer: not known here, not an error")
        self.put(3, "if pos != end:")
        self.put(4, "raise tag_not_used_up(tag, pos - begin, end - begin)")

    def _decode_value(self, indent: int, field: Field, of: Struct) -> None:
        at, nullable = f"o.{field.attribute}", self.version in field.nullable
        if field.wire_type == "struct" and not field.array:
            assert field.struct is not None
            if nullable:
                self.put(indent, "mark = data[pos]", field)
                self.put(indent, "pos += 1")
                self.put(indent, f"if mark == {NULL_STRUCT[0]}:")
                self.put(indent + 1, f"{at} = None")
                self.put(indent, f"elif mark != {PRESENT[0]}:")
                self.put(indent + 1, "raise bad_presence(mark)", field)
                self.put(indent, "else:")
                indent += 1
            self.put(indent, f"{at}, pos = decode_{field.struct.name}({self._arguments})", field)
            return
        if field.wire_type == "uuid" and not field.array:
            self.put(indent, f"{at}, pos = read_uuid(data, pos, size)", field)
            return
        self._decode_length(indent, field)
        if nullable:
            self.put(indent, "if n == -1:")
            self.put(indent + 1, f"{at} = None")
            self.put(indent, "else:")
            indent += 1
        if field.array:
            self._decode_elements(indent, field, of)
            return
        # One comparison for three faults: null (or invalid) where it is not allowed, too long, and beyond the end.
        limit = field.max_length
        self.put(indent, "stop = pos + n")
        self.put(indent, f"if not pos <= stop <= size{f' or n > {limit}' if limit else ''}:")
        self.put(indent + 1, f"raise bad_length(n, size - pos{f', {limit}' if limit else ''})", field)
        self.put(indent, f"{at} = data[pos:stop]{'.decode()' if field.wire_type == 'string' else ''}", field)
        self.put(indent, "pos = stop")

    def _decode_length(self, indent: int, field: Field) -> None:
        """Leaves the length in ``n``, -1 for null."""
        if self.flexible:
            self.put(indent, "n = data[pos]", field)
            self.put(indent, "pos += 1")
            self.put(indent, "if n > 127:")
            self.put(indent + 1, "n, pos = read_uvarint(data, pos)", field)
            self.put(indent, "n -= 1")
        else:
            _, unpack, size = self.layout(self._length_letter(field))
            self.put(indent, f"n, = {unpack}(data, pos)", field)
            self.put(indent, f"pos += {size}")

    def _decode_elements(self, indent: int, field: Field, of: Struct) -> None:
        at, limit = f"o.{field.attribute}", field.max_elements
        least = smallest(field, self.version, self.flexible)
        self.put(indent, f"if n < 0 or n * {least} > size - pos{f' or n > {limit}' if limit else ''}:")
        self.put(indent + 1, f"raise bad_count(n, size - pos, {least}{f', {limit}' if limit else ''})", field)
        if field.max_total is not None:
            left = f"left[{self._total_of[of.name, field.attribute]}]"
            self.put(indent, f"{left} -= n")
            self.put(indent, f"if {left} < 0:")
            self.put(indent + 1, f"raise bad_total({field.max_total} - {left}, {field.max_total})", field)
        if field.wire_type in INTEGERS:
            self.put(indent, f'{at} = unpack_from(f">{{n}}{INTEGERS[field.wire_type]}", data, pos)', field)
            self.put(indent, f"pos += n * {least}")
            return
        if field.struct is not None:
            item = f"decode_{field.struct.name}({self._arguments})"
        elif field.wire_type == "uuid":
            item = "read_uuid(data, pos, size)"
        else:
            length = f", {field.max_length}" if field.max_length else ""
            item = f"read_{'compact' if self.flexible else 'classic'}_string(data, pos, size{length})"
        self.put(indent, "items = []")
        self.put(indent, "for _ in range(n):")
        self.put(indent + 1, f"item, pos = {item}", field)
        self.put(indent + 1, "items.append(item)")
        self.put(indent, f"{at} = tuple(items)")

    def _choices(self, field: Field) -> str:
        assert field.choices is not None
        name = f"CHOICES_{field.choices.__name__}"
        if name not in self.names:
            self.names[name] = {choice.value: choice for choice in field.choices}
        return name


def _fixed(field: Field) -> bool:
    return not field.array and field.wire_type not in ("string", "bytes", "uuid", "struct")


def _letters(run: list[Field], *, decoding: bool = False) -> str:
    # Kafka decodes any byte but 0 as true, and so does "?". But "?" would also encode any object: there BOOL checks it.
    return "".join(INTEGERS.get(field.wire_type) or ("?" if decoding else "b") for field in run)


def _runs(fields: list[Field]) -> list[list[Field]]:
    """Group neighbouring numbers; every other field is a group of its own."""
    runs: list[list[Field]] = []
    for field in fields:
        if runs and _fixed(field) and _fixed(runs[-1][0]):
            runs[-1].append(field)
        else:
            runs.append([field])
    return runs


MAX_CLASSIC_STRING: Final = 32767
"""Maximum bytes in a string whose length is an int16."""

_BITS: Final = {"int8": 7, "int16": 15, "int32": 31, "int64": 63}


@dataclass(frozen=True, slots=True, kw_only=True)
class Lines:
    """The fields that each line of a generated module belongs to."""

    filename: str
    version: int
    flexible: bool
    fields: Mapping[int, tuple[Field, ...]]


def explain_decoding(error: BaseException, lines: Lines) -> str:
    """``groups.members.member_id at byte 17: got length 200; allowed: 0 to the 12 bytes that remain``."""
    path, frame, blamed = _trace(error.__traceback__, lines)
    names = [field.attribute for field in blamed]
    place = ".".join([*path, "/".join(names)] if names else path) or "tagged fields"
    at = f" at byte {frame.f_locals['pos']}" if frame is not None and "pos" in frame.f_locals else ""
    if isinstance(error, WireFault):
        return f"{place}{at}: {error}"
    if isinstance(error, UnicodeDecodeError):
        return f"{place}{at}: got bytes that are not UTF-8; allowed: UTF-8"
    return f"{place}{at}: the bytes end before the value does"


def explain_encoding(error: BaseException, lines: Lines) -> str:
    """``owned.tasks: got 2147483648; allowed: int32, -2147483648 to 2147483647``."""
    path, frame, blamed = _trace(error.__traceback__, lines)
    message = frame.f_locals.get("m") if frame is not None else None
    for field in blamed:
        place = ".".join([*path, field.attribute])
        if isinstance(error, WireFault):
            return f"{place}: {error}"
        if not hasattr(message, field.attribute):
            found = type(message).__name__
            return f"{'.'.join(path) or 'message'}: got {found}; allowed: something with {field.attribute}"
        value = getattr(message, field.attribute)
        nullable = lines.version in field.nullable
        if value is None and nullable:
            continue
        if field.array and not isinstance(value, (tuple, list)):
            return f"{place}: got {_found(value)}; allowed: a tuple{' or None' if nullable else ''}"
        for element in value if field.array else (value,):
            if not _fits(field, element, lines.flexible):
                return f"{place}: got {_found(element)}; allowed: {_allowed(field, nullable, lines.flexible)}"
    return f"{'.'.join(path) or 'message'}: cannot be encoded ({type(error).__name__})"


def _trace(traceback: TracebackType | None, lines: Lines) -> tuple[list[str], FrameType | None, tuple[Field, ...]]:
    """The fields on the path, the innermost generated frame, and the fields of its line."""
    path: list[str] = []
    frame: FrameType | None = None
    blamed: tuple[Field, ...] = ()
    while traceback is not None:
        if traceback.tb_frame.f_code.co_filename == lines.filename:
            if frame is not None and blamed:
                path.append(blamed[0].attribute)
            frame, blamed = traceback.tb_frame, lines.fields.get(traceback.tb_lineno, ())
        traceback = traceback.tb_next
    return path, frame, blamed


def _found(value: object) -> str:
    """Describe a value for an error message, without its text, which may be a secret in a configuration."""
    if value is None or isinstance(value, (int, float)):
        return str(value)
    if isinstance(value, str):
        lone = next((at for at, c in enumerate(value) if _lone_surrogate(c)), None)
        if lone is not None:
            return f"a string with U+{ord(value[lone]):04X} at character {lone}"
        return f"a string of {len(value.encode())} bytes"
    return type(value).__name__


def _lone_surrogate(character: str) -> bool:
    return "\ud800" <= character <= "\udfff"


def _fits(field: Field, value: Any, flexible: bool) -> bool:
    if field.choices is not None:
        return value in list(field.choices)
    if field.wire_type in INTEGERS:
        limit = 1 << _BITS[field.wire_type]
        return isinstance(value, int) and -limit <= value < limit
    if field.wire_type == "bool":
        return value in (False, True)
    if field.wire_type == "string":
        if not isinstance(value, str) or any(map(_lone_surrogate, value)):
            return False
        return flexible or len(value.encode()) <= MAX_CLASSIC_STRING
    if field.wire_type == "bytes":
        return isinstance(value, (bytes, bytearray, memoryview))
    return field.struct is not None and isinstance(value, field.struct.cls)


def _allowed(field: Field, nullable: bool, flexible: bool) -> str:
    if field.choices is not None:
        allowed = ", ".join(f"{choice.value} ({choice.name})" for choice in field.choices)
    elif field.wire_type in INTEGERS:
        limit = 1 << _BITS[field.wire_type]
        allowed = f"{field.wire_type}, {-limit} to {limit - 1}"
    elif field.wire_type == "string":
        allowed = "a string without lone surrogates" + ("" if flexible else f", at most {MAX_CLASSIC_STRING} bytes")
    elif field.struct is not None:
        allowed = f"a {field.struct.cls.__name__}"
    else:
        allowed = field.wire_type
    return f"{allowed} or None" if nullable and not field.array else allowed

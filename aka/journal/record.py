"""One journal line as bytes: strict JSON in ASCII that ends in a CRC-32 of everything before it.

`{"v":1,"seq":0,"run":"…","t_wall":…,"t_mono":…,"type":"…","data":{…},"crc":"0a1b2c3d"}` and a newline.
"""

from __future__ import annotations

import json
import re
import zlib
from dataclasses import dataclass
from typing import Any, NoReturn

VERSION = 1
MAX_RECORD_BYTES = 64_000
_END = re.compile(rb',"crc":"([0-9a-f]{8})"\}\n\Z')
_FIELDS = {"v": int, "seq": int, "run": str, "t_wall": float, "t_mono": float, "type": str, "data": dict}


@dataclass(frozen=True)
class Record:
    """One line. `t_wall` and `t_mono` are seconds of the wall clock and of the machine's monotonic clock."""

    seq: int
    run: str
    t_wall: float
    t_mono: float
    type: str
    data: dict[str, Any]


class BadRecord(Exception):
    """A line that is not a record of this version; its text says why."""


def to_line(record: Record) -> bytes:
    """The line of `record`. Raises ValueError for NaN or infinity, TypeError for what JSON cannot hold."""
    fields = {"v": VERSION, **vars(record)}
    body = json.dumps(fields, allow_nan=False, separators=(",", ":")).encode("ascii")[:-1]
    return body + b',"crc":"%08x"}\n' % zlib.crc32(body)


def from_line(line: bytes) -> Record:
    """The inverse of `to_line`; raises BadRecord."""
    end = _END.search(line)
    if end is None or int(end[1], 16) != zlib.crc32(line[: end.start()]):
        raise BadRecord(_why_unreadable(line))
    fields = _parse(line)
    if fields.get("v") != VERSION:
        raise BadRecord(_newer(fields.get("v")))
    for name, kind in _FIELDS.items():
        if type(fields.get(name)) is not kind:
            raise BadRecord(f"its field {name!r} is missing or has the wrong type")
    return Record(**{name: fields[name] for name in _FIELDS if name != "v"})


def _why_unreadable(line: bytes) -> str:
    # A later version may place its checksum elsewhere, and should be told apart from damage.
    try:
        version = _parse(line).get("v")
    except BadRecord:
        version = None
    if type(version) is int and version > VERSION:
        return _newer(version)
    return "its checksum does not match its content"


def _newer(version: object) -> str:
    return (
        f"it has version {version!r}, and this aka knows version {VERSION}: use the aka that wrote it, or a later one"
    )


def _parse(line: bytes) -> dict[str, Any]:
    try:
        fields = json.loads(line, parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        raise BadRecord(f"it is not strict JSON: {error}") from error
    if not isinstance(fields, dict):
        raise BadRecord("it is not a JSON object")
    return fields


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not allowed")

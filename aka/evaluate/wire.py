"""Framed messages over a pipe: what parent and worker say to each other, and nothing else.

A frame is an 8-byte big-endian length, that many bytes of strict JSON (`{"body": {...}, "blobs": [sizes]}`), then the
blobs one after another. The other end may be hostile, so every length is checked before a byte is allocated for it.
"""

from __future__ import annotations

import json
import math
import os
import select
import struct
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

from aka.errors import WireError

if TYPE_CHECKING:
    import numpy as np

HEADER_BYTES = 16 << 20
TOTAL_BYTES = 2 << 30
_MAX_BLOBS = 1 << 16
_CHUNK_BYTES = 1 << 20
_LENGTH = struct.Struct(">Q")


class HasFileno(Protocol):
    def fileno(self) -> int: ...


def encode(body: dict[str, Any], blobs: Sequence[bytes] = (), *, limit: int = TOTAL_BYTES) -> list[bytes]:
    """The pieces of one frame, in order. WireError: not strict JSON, or larger than a reader would take."""
    try:
        text = json.dumps({"body": body, "blobs": [len(b) for b in blobs]}, allow_nan=False, separators=(",", ":"))
    except (TypeError, ValueError, RecursionError) as e:
        raise WireError(f"this message is not strict JSON: {e}") from e
    header = text.encode("ascii")
    _check(len(header) <= HEADER_BYTES, f"a header of {len(header)} bytes is over {HEADER_BYTES}")
    _check(len(blobs) <= _MAX_BLOBS, f"{len(blobs)} blobs are over {_MAX_BLOBS}")
    total = len(header) + sum(len(b) for b in blobs)
    _check(total <= limit, f"a frame of {total} bytes is over {limit}")
    return [_LENGTH.pack(len(header)) + header, *(b for b in blobs if b)]


def send(out: int | HasFileno, body: dict[str, Any], blobs: Sequence[bytes] = ()) -> None:
    """Write one frame to a blocking descriptor. WireError as `encode`; OSError if the reader is gone."""
    write(out, encode(body, blobs))


def write(out: int | HasFileno, pieces: Sequence[bytes]) -> None:
    """Write the pieces of `encode` to a blocking descriptor."""
    fd = _fd(out)
    for piece in pieces:
        view = memoryview(piece)
        while view:
            view = view[os.write(fd, view[:_CHUNK_BYTES]) :]


def recv(
    source: int | HasFileno, deadline: float | None, *, limit: int = TOTAL_BYTES
) -> tuple[dict[str, Any], list[bytes]]:
    """One whole frame; `deadline` is in `time.monotonic()` seconds, None waits for ever.

    Raises EOFError when the writer closed between two frames; WireError for a malformed, oversized or truncated frame
    and for one that is not there by the deadline.
    """
    fd = _fd(source)
    decoder = Decoder(limit)
    poller = select.poll()
    poller.register(fd, select.POLLIN)
    while True:
        wait_ms = None if deadline is None else max(0, math.ceil((deadline - time.monotonic()) * 1000))
        if not poller.poll(wait_ms):
            raise WireError("no whole frame came before the deadline")
        frame = decoder.read(fd)
        if frame is not None:
            return frame


class Decoder:
    """Reads exactly one frame, a piece at a time, and never a byte beyond it."""

    def __init__(self, limit: int = TOTAL_BYTES) -> None:
        self._limit = limit
        self._buffer = bytearray(_LENGTH.size)
        self._filled = 0
        self._body: dict[str, Any] | None = None
        self._sizes: list[int] | None = None
        self._header_seen = False
        self._blobs: list[bytes] = []

    def read(self, fd: int) -> tuple[dict[str, Any], list[bytes]] | None:
        """One `read` from a readable descriptor; the frame once it is whole. EOFError or WireError at its end."""
        view = memoryview(self._buffer)[self._filled : self._filled + _CHUNK_BYTES]
        count = os.readv(fd, [view])
        view.release()
        if count == 0:
            self._ended()
        self._filled += count
        while self._filled == len(self._buffer):
            if self._advance():
                return self._body or {}, self._blobs
        return None

    def _ended(self) -> NoReturn:
        if self._header_seen or self._filled:
            raise WireError("the frame was cut short")
        raise EOFError("the other end closed the pipe")

    def _advance(self) -> bool:
        """The current piece is whole: keep it and make room for the next. True when the frame is done."""
        piece, self._filled = self._buffer, 0
        if not self._header_seen:
            size = _LENGTH.unpack(piece)[0]
            _check(0 < size <= min(HEADER_BYTES, self._limit), f"a header of {size} bytes was announced")
            self._header_seen, self._buffer = True, bytearray(size)
            return False
        if self._sizes is None:
            self._body, self._sizes = _parse(bytes(piece), self._limit)
        else:
            self._blobs.append(bytes(piece))
        if len(self._blobs) == len(self._sizes):
            return True
        self._buffer = bytearray(self._sizes[len(self._blobs)])
        return False


def _parse(raw: bytes, limit: int) -> tuple[dict[str, Any], list[int]]:
    try:
        header = json.loads(raw.decode(), parse_constant=_no_constant, parse_float=_finite)
        if b"\\ud" in raw.lower():
            json.dumps(header, ensure_ascii=False).encode()  # a lone surrogate could not be written anywhere later
    except (ValueError, RecursionError) as e:
        raise WireError(f"a header is not strict JSON: {e}") from e
    _check(isinstance(header, dict) and header.keys() == {"body", "blobs"}, "a header has the wrong keys")
    body, sizes = header["body"], header["blobs"]
    _check(isinstance(body, dict) and isinstance(sizes, list), "a header has values of the wrong kind")
    _check(len(sizes) <= _MAX_BLOBS, f"{len(sizes)} blobs were announced")
    _check(all(type(n) is int and n >= 0 for n in sizes), "a blob's size is not a count")
    _check(len(raw) + sum(sizes) <= limit, f"a frame of {len(raw) + sum(sizes)} bytes was announced, over {limit}")
    return body, sizes


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text[:40]} is not a finite number")
    return value


def _check(good: bool, complaint: str) -> None:
    if not good:
        raise WireError(complaint)


def _fd(thing: int | HasFileno) -> int:
    return thing if isinstance(thing, int) else thing.fileno()


def pack(arrays: Sequence[np.ndarray[Any, Any]]) -> tuple[list[dict[str, Any]], list[bytes]]:
    """Arrays as `{"dtype": name, "shape": [...]}` and their bytes, little-endian, row-major; WireError else."""
    import numpy as np

    specs, blobs = [], []
    for array in map(np.asarray, arrays):
        dtype = _dtype(array.dtype.name)
        specs.append({"dtype": array.dtype.name, "shape": list(array.shape)})
        blobs.append(array.astype(dtype, copy=False).tobytes())
    return specs, blobs


def unpack(specs: Sequence[dict[str, Any]], blobs: Sequence[bytes]) -> list[np.ndarray[Any, Any]]:
    """Read-only arrays over the blobs (no copy). WireError where a spec and its blob don't fit each other."""
    _check(isinstance(specs, list | tuple) and len(specs) == len(blobs), "as many array specs as blobs are needed")
    return [_unpack(spec, blob) for spec, blob in zip(specs, blobs, strict=True)]


def _unpack(spec: Any, blob: bytes) -> np.ndarray[Any, Any]:
    import numpy as np

    _check(isinstance(spec, dict) and spec.keys() == {"dtype", "shape"}, "an array spec has the wrong keys")
    shape, dtype = spec["shape"], _dtype(spec["dtype"])
    _check(isinstance(shape, list) and len(shape) <= 32, "an array's shape is not a short list")
    _check(all(type(n) is int and n >= 0 for n in shape), "an array's shape is not made of counts")
    _check(
        math.prod(shape) * dtype.itemsize == len(blob), f"{len(blob)} bytes do not fill {spec['dtype']}{shape}"[:200]
    )
    if dtype == np.bool_:
        _check(not blob.strip(b"\x00\x01"), "a bool array holds bytes other than 0 and 1")
    try:
        return np.ndarray(shape, dtype, buffer=blob)
    except (ValueError, OverflowError) as e:  # a zero-size shape may still be too wide for numpy
        raise WireError(f"an array's shape cannot be built: {e}") from e


def _dtype(name: Any) -> np.dtype[Any]:
    import ml_dtypes
    import numpy as np

    if isinstance(name, str) and name in _NUMPY_NAMES:
        return np.dtype("<" + np.dtype(name).str[1:])
    known = isinstance(name, str) and name.startswith(_ML_PREFIXES) and hasattr(ml_dtypes, name)
    _check(known, f"arrays of dtype {str(name)[:40]!r} do not travel")
    dtype: np.dtype[Any] = np.dtype(getattr(ml_dtypes, name))
    return dtype


_ML_PREFIXES = ("bfloat16", "float8_", "float6_", "float4_", "int4", "int2", "uint4", "uint2", "int1", "uint1")
_NUMPY_NAMES = frozenset(
    ["bool", "float16", "float32", "float64", "complex64", "complex128"]
    + [f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)]
)

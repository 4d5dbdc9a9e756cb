"""Frames and arrays: what is sent arrives, and what is malformed never gets past `WireError`."""

from __future__ import annotations

import json
import os
import struct
import threading
import time
from collections.abc import Iterator
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aka.errors import WireError
from aka.evaluate import wire

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**62), 2**62)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=9), inner, max_size=4),
    max_leaves=12,
)
DTYPES = [
    np.bool_, np.int8, np.uint16, np.int64, np.float16, np.float32, np.float64, np.complex64, ml_dtypes.bfloat16,
    ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2, ml_dtypes.int4, ml_dtypes.uint4,
]  # fmt: skip


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    source, sink = os.pipe()
    yield source, sink
    for fd in (source, sink):
        try:
            os.close(fd)
        except OSError:
            pass


def _soon() -> float:
    return time.monotonic() + 10


def _raw(header: bytes, rest: bytes = b"") -> bytes:
    return struct.pack(">Q", len(header)) + header + rest


def _received(pipe: tuple[int, int], data: bytes, *, close: bool = True, limit: int = wire.TOTAL_BYTES) -> object:
    os.write(pipe[1], data)
    if close:
        os.close(pipe[1])
    return wire.recv(pipe[0], _soon(), limit=limit)


@settings(max_examples=25, deadline=None)
@given(st.dictionaries(st.text(max_size=9), JSON, max_size=4), st.lists(st.binary(max_size=99), max_size=5))
def test_what_is_sent_arrives(body: dict[str, object], blobs: list[bytes]) -> None:
    try:
        json.dumps(body, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return
    source, sink = os.pipe()
    try:
        wire.send(sink, body, blobs)
        assert wire.recv(source, _soon()) == (body, blobs)
    finally:
        os.close(source)
        os.close(sink)


def test_a_frame_larger_than_the_pipe_arrives_and_the_next_one_is_untouched(pipe: tuple[int, int]) -> None:
    blobs = [os.urandom(3 << 20), b"", os.urandom(5)]

    def write() -> None:
        wire.send(pipe[1], {"n": 1}, blobs)
        wire.send(pipe[1], {"n": 2})

    writer = threading.Thread(target=write)
    writer.start()
    assert wire.recv(pipe[0], _soon()) == ({"n": 1}, blobs)
    assert wire.recv(pipe[0], _soon()) == ({"n": 2}, [])
    writer.join()


@pytest.mark.parametrize(
    "data",
    [
        struct.pack(">Q", 0),
        struct.pack(">Q", 1 << 40),
        b"\xff" * 8,
        b"\x00\x00",
        _raw(b'{"body":{},"blobs":[]')[:-3],
        _raw(b"not json"),
        _raw(b"\xff\xfe"),
        _raw(b"[]"),
        _raw(b'{"body":{}}'),
        _raw(b'{"body":{},"blobs":[],"more":1}'),
        _raw(b'{"body":[],"blobs":[]}'),
        _raw(b'{"body":{},"blobs":[-1]}'),
        _raw(b'{"body":{},"blobs":[true]}', b"x"),
        _raw(b'{"body":{},"blobs":[1.0]}', b"x"),
        _raw(b'{"body":{},"blobs":[9223372036854775807]}'),
        _raw(b'{"body":{},"blobs":[4]}', b"abc"),
        _raw(b'{"body":{"a":NaN},"blobs":[]}'),
        _raw(b'{"body":{"a":-Infinity},"blobs":[]}'),
        _raw(b'{"body":{"a":1e999},"blobs":[]}'),
        _raw(b'{"body":{"a":"\\ud800"},"blobs":[]}'),
        _raw(b'{"body":{"a":' + b"9" * 5000 + b'},"blobs":[]}'),
        _raw(b'{"body":' + b'{"a":' * 9000 + b"1" + b"}" * 9000 + b',"blobs":[]}'),
    ],
)
def test_a_malformed_frame_is_a_wire_error(pipe: tuple[int, int], data: bytes) -> None:
    with pytest.raises(WireError):
        _received(pipe, data)


def test_caps_hold_on_both_sides(pipe: tuple[int, int]) -> None:
    with pytest.raises(WireError, match="over 1000"):
        wire.encode({}, [bytes(2000)], limit=1000)
    with pytest.raises(WireError, match="over 1000"):
        _received(pipe, _raw(b'{"body":{},"blobs":[2000]}'), limit=1000)
    with pytest.raises(WireError, match="header"):
        wire.encode({"text": "x" * wire.HEADER_BYTES})


@pytest.mark.parametrize("body", [{"a": float("nan")}, {"a": float("inf")}, {"a": b"bytes"}, {"a": object()}])
def test_what_is_not_json_is_not_sent(body: dict[str, object]) -> None:
    with pytest.raises(WireError):
        wire.encode(body)


def test_a_closed_pipe_is_the_end_and_a_silent_one_runs_into_the_deadline(pipe: tuple[int, int]) -> None:
    began = time.monotonic()
    with pytest.raises(WireError, match="deadline"):
        wire.recv(pipe[0], began + 0.05)
    assert 0.05 <= time.monotonic() - began < 2
    os.write(pipe[1], b"\x00" * 4)
    with pytest.raises(WireError, match="deadline"):
        wire.recv(pipe[0], time.monotonic() + 0.05)
    os.close(pipe[1])
    with pytest.raises(EOFError):
        wire.recv(pipe[0], _soon())


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (2, 3), (1, 1, 7)])
def test_arrays_travel(dtype: type, shape: tuple[int, ...]) -> None:
    array: np.ndarray[Any, Any] = (np.arange(np.prod(shape, dtype=int)) % 5).reshape(shape).astype(dtype)
    specs, blobs = wire.pack([array, array.T])
    there, turned = wire.unpack(json.loads(json.dumps(specs)), blobs)
    assert there.dtype == array.dtype and there.shape == shape and turned.shape == shape[::-1]
    assert there.tobytes() == array.tobytes()
    assert np.array_equal(turned.astype(np.complex64), array.T.astype(np.complex64))


def test_a_big_endian_array_arrives_with_its_values() -> None:
    array: np.ndarray[Any, Any] = np.arange(5, dtype=">f4")
    assert np.array_equal(wire.unpack(*wire.pack([array]))[0], array)


@pytest.mark.parametrize("dtype", ["O", "U4", "datetime64[s]"])
def test_only_numbers_travel(dtype: str) -> None:
    with pytest.raises(WireError):
        wire.pack([np.zeros(2, dtype)])


@pytest.mark.parametrize(
    "spec",
    [
        {"dtype": "object", "shape": [1]},
        {"dtype": "finfo", "shape": [4]},
        {"dtype": "float32", "shape": [2]},
        {"dtype": "float32", "shape": [-1]},
        {"dtype": "float32", "shape": [True]},
        {"dtype": "float32", "shape": [2**62, 2**62]},
        {"dtype": "float32", "shape": 1},
        {"dtype": ["float32"], "shape": [1]},
        {"dtype": "float32"},
        {"dtype": "bool", "shape": [4]},
        "float32",
    ],
)
def test_an_array_spec_that_does_not_fit_its_bytes_is_a_wire_error(spec: object) -> None:
    with pytest.raises(WireError):
        wire.unpack([spec], [b"\x00\x01\x02\x03"])  # type: ignore[list-item]


def test_a_huge_shape_without_elements_is_a_wire_error_or_an_empty_array() -> None:
    try:
        assert wire.unpack([{"dtype": "float32", "shape": [2**62, 0]}], [b""])[0].size == 0
    except WireError as e:
        assert "shape" in str(e)
    with pytest.raises(WireError):
        wire.unpack([{"dtype": "float32", "shape": [1]}], [])

"""Everything in which the Mosaic versions differ, and the types' names: the one table to extend for a new jax.

Version 11 is what jax 0.10.2 writes (read from its bytecode), version 15 what jax 0.12.0.1 writes (spellings as
observed with libtpu 0.0.50.1).
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from aka.artifact.errors import Undecodable

PREFIX = "stable_mosaic."
KNOWN_VERSIONS = frozenset({11, 15})
VERSION_ATTRIBUTE = "stable_mosaic.version"

# Another spelling of the same operation -> the name that the rest of this package uses.
SPELLINGS = {
    "vector.store": "tpu.vector_store",
    "tpu.vector_load": "vector.load",
    "tpu.reshape": "vector.shape_cast",
    "tpu.broadcast": "vector.broadcast",
    "vector.transpose": "tpu.transpose",
    "vector.bitcast": "tpu.bitcast",
    "arith.bitcast": "tpu.bitcast",
    "tpu.rotate": "tpu.dynamic_rotate",
    "memref.cast": "tpu.memref_cast",
    "tpu.erase_memref_layout": "tpu.memref_cast",
    "tpu.reinterpret_cast": "tpu.memref_cast",
}

# `window_params` says how a window is buffered under one of these names.
MODE_ATTRIBUTES = ("pipeline_mode", "buffering")
WINDOW_KIND_ATTRIBUTE = "window_kind"

NUMPY = {
    "f64": np.dtype(np.float64),
    "f32": np.dtype(np.float32),
    "bf16": np.dtype(ml_dtypes.bfloat16),
    "f16": np.dtype(np.float16),
    "f8E4M3FN": np.dtype(ml_dtypes.float8_e4m3fn),
    "f8E5M2": np.dtype(ml_dtypes.float8_e5m2),
    "f8E4M3B11FNUZ": np.dtype(ml_dtypes.float8_e4m3b11fnuz),
    "f4E2M1FN": np.dtype(ml_dtypes.float4_e2m1fn),
    "i64": np.dtype(np.int64),
    "ui64": np.dtype(np.uint64),
    "i32": np.dtype(np.int32),
    "ui32": np.dtype(np.uint32),
    "i16": np.dtype(np.int16),
    "ui16": np.dtype(np.uint16),
    "i8": np.dtype(np.int8),
    "ui8": np.dtype(np.uint8),
    "i4": np.dtype(ml_dtypes.int4),
    "ui4": np.dtype(ml_dtypes.uint4),
    "i2": np.dtype(ml_dtypes.int2),
    "i1": np.dtype(np.bool_),
    "index": np.dtype(np.int64),
}
_BY_NAME: dict[str, np.dtype[Any]] = {dtype.name: dtype for dtype in NUMPY.values()}
_NARROW_BITS = {"int4": 4, "uint4": 4, "int2": 2, "uint2": 2, "float4_e2m1fn": 4}


def bits(dtype: str) -> int:
    """Bits of one element in HBM and VMEM, by NumPy's name; semaphores count as 32. Raises Undecodable."""
    if dtype in _NARROW_BITS:
        return _NARROW_BITS[dtype]
    return 8 * numpy_dtype(dtype).itemsize if "semaphore" not in dtype else 32


def numpy_dtype(name: str) -> np.dtype[Any]:
    """The NumPy dtype of NumPy's or ml_dtypes' name. Raises Undecodable if there is none."""
    found = _BY_NAME.get(name)
    if found is None:
        raise Undecodable(f"unknown element type {name}")
    return found


def canonical(name: str) -> str:
    """The operation's name without prefix, in this package's spelling."""
    plain = name.removeprefix(PREFIX)
    return SPELLINGS.get(plain, plain)

"""The chip table: one row per TPU generation, per JAX device (which is a core, a chip, or half a chip).

Sources, cited by their letter beside each figure:

- C: Google Cloud's system pages, docs.cloud.google.com/tpu/docs/{v4,v5e,v5p,v6e,tpu7x}. Per chip; halved here where a
  chip is two JAX devices (v4 as libtpu splits it by default, tpu7x).
- J: `jax/_src/pallas/mosaic/tpu_info.py` of jax 0.10.2.
- L: the compiler itself, libtpu 0.0.52: the limits in its out-of-memory messages, and the unit counts in the header of
  its utilisation dump.
- D: derived: clock = bf16 peak / (cores x MXUs x multiply-adds per cycle x 2). An MXU retires 128 x 128 multiply-adds a
  cycle up to v5p and 2 x 256 x 256 from v6e on (L: one 16 x 256 x 256 matmul per 8 bundles).

`float32` is XLA's default precision: the operands are rounded to bfloat16 and multiplied in one pass, so its rate is
bfloat16's (L). "highest" takes six passes. A dtype that the matrix unit does not multiply natively has the rate of the
dtype that the compiler converts it to (L).
"""

from __future__ import annotations

from aka.errors import UsageError
from aka.types import Chip

_T = 1e12
_GIB = 2**30
_MIB = 2**20


def _gib(amount: float) -> int:
    return int(amount * _GIB)


def _mib(amount: float) -> int:
    return int(amount * _MIB)


def _peaks(bf16: float, *, int8: float, int4: float, fp8: float) -> dict[str, float]:
    """FLOP/s by dtype name from TFLOP/s (TOP/s); float32 at default precision is one bfloat16 pass."""
    rates = {"bfloat16": bf16, "float32": bf16, "int8": int8, "int4": int4, "float8_e4m3fn": fp8, "float8_e5m2": fp8}
    return {dtype: rate * _T for dtype, rate in rates.items()}


V4 = Chip(
    name="v4",
    device_kind="TPU v4",
    topology="v4:2x2x1",
    cores=1,  # L: split by default, two JAX devices per chip
    clock_hz=1.05e9,  # D
    # C says 275 "bf16 or int8" a chip, J lists no int8 and Mosaic rejects it (L): XLA's rate is bf16's. No fp8 (L).
    peak_flops_per_s=_peaks(137.5, int8=137.5, int4=137.5, fp8=137.5),
    hbm_bytes=_gib(15.25),  # L: usable of the 16 GiB
    hbm_bytes_per_s=600e9,  # C: 1200 a chip
    vmem_bytes=_mib(16),  # L
    default_scoped_vmem_bytes=_mib(16),  # L
    smem_bytes=_mib(1),  # L
    cycle_profile=False,  # L: "only VF/VL/GF/GL"
)
V5E = Chip(
    name="v5e",
    device_kind="TPU v5 lite",
    topology="v5e:2x2",
    cores=1,
    clock_hz=1.5e9,  # D
    peak_flops_per_s=_peaks(197, int8=393, int4=788, fp8=197),  # C; int4 J; fp8 is converted to bf16 (L)
    hbm_bytes=_gib(15.75),  # L: usable of the 16 GiB
    hbm_bytes_per_s=819e9,  # C
    vmem_bytes=_mib(128),  # L
    default_scoped_vmem_bytes=_mib(16),  # L
    smem_bytes=_mib(1),  # L
    cycle_profile=True,
)
V5P = Chip(
    name="v5p",
    device_kind="TPU v5",
    topology="v5p:2x2x1",
    cores=2,  # L: one megacore device per chip
    clock_hz=1.75e9,  # D
    peak_flops_per_s=_peaks(459, int8=918, int4=1840, fp8=459),  # C; int4 J; fp8 at bf16's rate (J, L)
    hbm_bytes=_gib(95.73),  # L
    # C 2765, J 2460, the scaling book 2800: the vendor's figure, which also keeps a floor a floor.
    hbm_bytes_per_s=2765e9,
    vmem_bytes=_mib(63.94),  # L, per core
    default_scoped_vmem_bytes=_mib(16),  # L
    smem_bytes=_mib(1),  # L
    cycle_profile=True,
)
V6E = Chip(
    name="v6e",
    device_kind="TPU v6 lite",
    topology="v6e:2x2",
    cores=1,
    clock_hz=1.75e9,  # D
    peak_flops_per_s=_peaks(918, int8=1836, int4=3680, fp8=918),  # C; int4 J; fp8 at bf16's rate (L)
    hbm_bytes=_gib(31.24),  # L: usable of the 32 GiB
    hbm_bytes_per_s=1638e9,  # C 1638 (1600 and 1640 on other pages)
    vmem_bytes=_mib(127.94),  # L
    default_scoped_vmem_bytes=_mib(32),  # L
    smem_bytes=_mib(1),  # L
    cycle_profile=True,
)
TPU7X = Chip(
    name="tpu7x",
    device_kind="TPU7x",
    topology="tpu7x:2x2x1",
    cores=1,  # L: two devices per chip, never joined
    clock_hz=2.2e9,  # D
    # C: 2307 bf16 and 4614 fp8 a chip. int8 runs as bf16, int4 is rewritten to fp8 (L).
    peak_flops_per_s=_peaks(1153.5, int8=1153.5, int4=2307, fp8=2307),
    hbm_bytes=_gib(94.74),  # L: usable of the 96 GiB per device
    hbm_bytes_per_s=3690e9,  # C: 7380 a chip (7400 on another page)
    vmem_bytes=_mib(63.94),  # L
    default_scoped_vmem_bytes=_mib(32),  # L
    smem_bytes=_mib(1),  # L
    # L: it aborts the process on a matmul or a reduction, and overflows its stack on an XLA softmax.
    cycle_profile=False,
)

CHIPS: dict[str, Chip] = {c.name: c for c in (V4, V5E, V5P, V6E, TPU7X)}


def chip(name: str | Chip) -> Chip:
    """The chip of that name (a Chip is returned as it is); raises UsageError, which lists the known ones."""
    if isinstance(name, Chip):
        return name
    if name not in CHIPS:
        raise UsageError(f"unknown chip {name!r}; known chips: {', '.join(CHIPS)}")
    return CHIPS[name]


def peak_flops_per_s(chip: Chip, dtype: str) -> float:
    """Multiply-add peak of the chip's matrix units for operands of that dtype (2 FLOP per multiply-add).

    Dtypes that the table does not list (float16, int32 ...) get the fastest rate, so that a floor stays a floor.
    """
    return chip.peak_flops_per_s.get(dtype, max(chip.peak_flops_per_s.values()))

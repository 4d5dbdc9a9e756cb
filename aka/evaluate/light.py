"""The speed of light of a workload: what no kernel can beat. Told by the workload alone, never by a candidate."""

from __future__ import annotations

from aka.types import Chip, ShapeCase, Workload

# With these around a single product, every multiply-add of it is needed. A mask, a second product (which may be
# reordered), a sum, a slice or a table of indices lets an honest kernel leave some out.
_NEEDED = frozenset(
    {
        "abs", "add", "add_any", "broadcast_in_dim", "clamp", "convert_element_type", "copy", "cos", "custom_jvp_call",
        "custom_vjp_call", "div", "dot_general", "erf", "exp", "exp2", "expm1", "integer_pow", "jit", "log", "log1p",
        "logistic", "max", "min", "mul", "neg", "pjit", "pow", "reduce_max", "reduce_min", "reshape", "rsqrt", "sign",
        "sin", "sqrt", "square", "squeeze", "sub", "tanh", "transpose",
    }
)  # fmt: skip


def floor_us(workload: Workload, case: ShapeCase, chip: Chip) -> tuple[float, str]:
    """(microseconds, what takes them): every input read once and every output written once at the HBM's bandwidth; or
    the products at the peak of the fastest dtype among the inputs, where an honest kernel cannot do with fewer."""
    bytes_us = 1e6 * case.min_bytes / chip.hbm_bytes_per_s
    kinds = {leaf.dtype for leaf in case.inputs.leaves} & chip.peak_flops_per_s.keys() | {"bfloat16"}
    flops_us = 1e6 * case.flops / max(chip.peak_flops_per_s[k] for k in kinds)
    if flops_us > bytes_us and _all_needed(workload.primitives):
        return flops_us, "multiplying the matrices"
    return bytes_us, "reading the inputs and writing the outputs"


def _all_needed(primitives: dict[str, int]) -> bool:
    return primitives.get("dot_general") == 1 and primitives.keys() <= _NEEDED

"""Structure gate: the work must happen inside kernels. Decided from facts that the runner reads off the artifact."""

from __future__ import annotations

from aka.evaluate.facts import ArtifactFacts, Outside

HEAVY = frozenset(
    f"stablehlo.{name}"
    for name in (
        "convolution", "dot", "dot_general", "exponential", "exponential_minus_one", "fft", "gather", "log",
        "log_plus_one", "logistic", "power", "reduce", "reduce_window", "rng", "rng_bit_generator", "rsqrt", "scatter",
        "select_and_scatter", "sine", "cosine", "sort", "sqrt", "cbrt", "tan", "tanh", "triangular_solve", "cholesky",
        "dynamic_conv", "dynamic_gather", "atan2",
    )
) | {"chlo.erf", "chlo.erf_inv", "chlo.erfc", "chlo.ragged_dot", "chlo.top_k"}  # fmt: skip
BRANCHES = frozenset({"stablehlo.case", "stablehlo.if"})
FORBIDDEN_OPTIONS = {
    "disable_bounds_checks": "an access outside an array would reach other memory of the chip",
    "disable_semaphore_checks": "a copy that nobody waits for would go unseen",
    "flag_configs": "the compiler that is measured is the one that everybody has",
}
MIN_ELEMENTS = 1024
"""Below this, work around a kernel is housekeeping (a scale vector, a table of offsets); all trips of a loop count."""
ARITHMETIC = frozenset(
    f"stablehlo.{name}"
    for name in (
        "add", "subtract", "multiply", "divide", "remainder", "maximum", "minimum", "select", "clamp", "compare", "and",
        "or", "xor", "not", "shift_left", "shift_right_logical", "shift_right_arithmetic", "negate", "abs", "sign",
    )
)  # fmt: skip
MAX_PASSES = 16
"""Elementwise arithmetic around kernels, in passes over all that goes in and comes out: a product written as sums of
scaled rows takes as many as it has rows."""
MAX_CONSTANT_BYTES = 1 << 20
"""Larger constants could be baked answers."""


def fault(facts: ArtifactFacts, *, loops: bool = False) -> tuple[str, str] | None:
    """(reason code, sentence) if the artifact breaks a rule, else None. `loops`: the op itself has loops whose trips
    hang on values, so a kernel may stand in one."""
    foreign = sorted({t for t in facts.targets if t != "tpu_custom_call"})
    if foreign:
        return "forbidden_primitive", f"custom call {', '.join(foreign)}: only Pallas TPU kernels are allowed"
    if not facts.kernels:
        return "not_a_kernel", "the TPU artifact holds no Pallas kernel: what runs would be plain XLA"
    for kernel in facts.kernels:
        for option in kernel.options:
            if option in FORBIDDEN_OPTIONS:
                return "forbidden_primitive", f"{kernel.name} asks for {option}: {FORBIDDEN_OPTIONS[option]}"
    if any(o.name in BRANCHES for o in facts.outside):
        return (
            "forbidden_primitive",
            "a branch around kernels (lax.cond, lax.switch): its cost would hang on the values",
        )
    if not any(facts.feeds):
        return "work_outside_kernel", "no kernel's result reaches the output"
    if facts.constants_bytes > MAX_CONSTANT_BYTES:
        size = facts.constants_bytes
        return "work_outside_kernel", f"constants of {size} bytes around the kernel; at most {MAX_CONSTANT_BYTES}"
    if facts.endless and not loops:
        return "forbidden_primitive", "a loop around kernels whose trips hang on values: what it costs cannot be told"
    return _work(facts)


def _work(facts: ArtifactFacts) -> tuple[str, str] | None:
    heavy = [(_total(o), o.name) for o in facts.outside if o.name in HEAVY and _total(o) >= MIN_ELEMENTS]
    if heavy:
        elements, name = max(heavy)
        return "work_outside_kernel", f"{name} on {elements} elements runs outside the kernel, as plain XLA"
    passes = sum(_total(o) for o in facts.outside if o.name in ARITHMETIC) / max(facts.elements, MIN_ELEMENTS)
    if passes > MAX_PASSES:
        text = f"elementwise arithmetic outside the kernel takes {passes:.0f} passes over the op's inputs and outputs"
        return "work_outside_kernel", f"{text}; at most {MAX_PASSES}"
    return None


def _total(op: Outside) -> int:
    """Elements of all runs; in a loop of unknown length, even one element is too many."""
    return op.elements * (MIN_ELEMENTS if op.runs is None else op.runs)

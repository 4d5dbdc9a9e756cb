"""Structure gate: the work must happen inside kernels. Decided from facts that the runner reads off the artifact."""

from __future__ import annotations

from aka.evaluate.facts import ArtifactFacts

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
"""Below this, work around a kernel is housekeeping (a scale vector, a table of offsets)."""
MAX_CONSTANT_BYTES = 1 << 20
"""Larger constants could be baked answers."""


def fault(facts: ArtifactFacts) -> tuple[str, str] | None:
    """(reason code, sentence) if the artifact breaks a rule, else None."""
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
    heavy = [o for o in facts.outside if o.name in HEAVY and o.elements >= MIN_ELEMENTS]
    if heavy:
        worst = max(heavy, key=lambda o: o.elements)
        return "work_outside_kernel", f"{worst.name} on {worst.elements} elements runs outside the kernel, as plain XLA"
    return None

"""The structure gate, from facts alone: the work must happen inside kernels."""

from __future__ import annotations

from dataclasses import replace

import pytest

from aka.evaluate import structure
from aka.evaluate.facts import ArtifactFacts, KernelFacts, Outside

KERNEL = KernelFacts("k", (4,), (), ((),), 1024, None, False)
GOOD = ArtifactFacts((KERNEL,), (), ("tpu_custom_call",), 0, (True,), 1 << 20)


def outside(name: str, elements: int) -> ArtifactFacts:
    return replace(GOOD, outside=(Outside("stablehlo.reshape", 1 << 20), Outside(name, elements)))


@pytest.mark.parametrize(
    "facts",
    [
        GOOD,
        outside("stablehlo.exponential", structure.MIN_ELEMENTS - 1),
        outside("stablehlo.convert", 1 << 24),
        outside("stablehlo.transpose", 1 << 24),
        outside("stablehlo.multiply", structure.MAX_PASSES << 20),
        replace(GOOD, outside=(Outside("stablehlo.tanh", 8, 16),)),
        replace(GOOD, constants_bytes=structure.MAX_CONSTANT_BYTES),
        replace(GOOD, kernels=(KERNEL, KERNEL), targets=("tpu_custom_call",) * 2, feeds=(False, True)),
    ],
    ids=["kernel", "small", "cast", "transpose", "sixteen passes", "small in a loop", "constants", "one-of-two"],
)
def test_work_inside_kernels_passes(facts: ArtifactFacts) -> None:
    assert structure.fault(facts) is None


@pytest.mark.parametrize(
    ("facts", "code", "words"),
    [
        (replace(GOOD, kernels=(), targets=(), feeds=()), "not_a_kernel", "no Pallas kernel"),
        (replace(GOOD, feeds=(False,)), "work_outside_kernel", "no kernel's result"),
        (replace(GOOD, targets=("tpu_custom_call", "Sharding")), "forbidden_primitive", "Sharding"),
        (replace(GOOD, constants_bytes=structure.MAX_CONSTANT_BYTES + 1), "work_outside_kernel", "constants"),
        (outside("stablehlo.dot_general", 1 << 20), "work_outside_kernel", "dot_general on 1048576"),
        (outside("stablehlo.reduce", structure.MIN_ELEMENTS), "work_outside_kernel", "reduce on 1024"),
        (outside("stablehlo.add", (structure.MAX_PASSES << 20) + (1 << 20)), "work_outside_kernel", "17 passes"),
        (replace(GOOD, outside=(Outside("stablehlo.tanh", 8, 128),)), "work_outside_kernel", "tanh on 1024"),
        (replace(GOOD, outside=(Outside("stablehlo.tanh", 1, None),)), "work_outside_kernel", "tanh on 1024"),
        (replace(GOOD, endless=True), "forbidden_primitive", "trips"),
        (outside("chlo.erf", 1 << 20), "work_outside_kernel", "chlo.erf"),
        (outside("chlo.ragged_dot", 1 << 20), "work_outside_kernel", "ragged_dot"),
    ],
)
def test_work_elsewhere_is_a_fault(facts: ArtifactFacts, code: str, words: str) -> None:
    found = structure.fault(facts)
    assert found is not None and found[0] == code and words in found[1]


def test_the_worst_operation_is_named() -> None:
    facts = replace(GOOD, outside=(Outside("stablehlo.sort", 2048), Outside("stablehlo.log", 1 << 20)))
    assert "log" in (structure.fault(facts) or ("", ""))[1]


def test_an_op_with_open_loops_may_have_its_kernels_in_one() -> None:
    assert structure.fault(replace(GOOD, endless=True), loops=True) is None

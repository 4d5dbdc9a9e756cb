"""Which families of inputs an op is judged by."""

from __future__ import annotations

from aka.evaluate.correctness import families_for
from aka.types import ArraySpec, ShapeCase, Signature, Workload


def workload(output: str, **primitives: int) -> Workload:
    inputs = Signature((ArraySpec((8, 128), "float32"),), {"tuple": [0]})
    case = ShapeCase("rows=8", {}, inputs, Signature((ArraySpec((8, 128), output),), 0), 0.0, 8192)
    return Workload("op", "op.py", "", (case,), (case,), primitives, (), ("x",))


def test_a_float_op_is_judged_by_all_of_them() -> None:
    assert "nonfinite" in families_for(workload("float32", convert_element_type=2))


def test_what_a_nan_becomes_as_an_integer_is_nobodys_fault() -> None:
    assert "nonfinite" not in families_for(workload("int8", round=1, convert_element_type=1))
    assert {"normal", "spikes", "masked"} <= set(families_for(workload("int8", convert_element_type=1)))


def test_an_index_is_defined_for_a_nan_too() -> None:
    assert "nonfinite" in families_for(workload("int32", argmax=1))

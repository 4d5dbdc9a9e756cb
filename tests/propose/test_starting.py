"""The user's own kernel: what of the file is kept, what is tuned about it, and that it fits every shape."""

from __future__ import annotations

import ast
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from propose_standins import TablePlanner, brief, finished, kernel, passages, workload

from aka.errors import WorkloadError
from aka.evaluate import static
from aka.propose import starting
from aka.propose.catalog import OfflineProposer
from aka.propose.tunables import find
from aka.types import ArraySpec, Candidate, ShapeCase, Signature, Space, Workload

OP = Path(__file__).parents[1] / "workload" / "data" / "op_with_starting_kernel.py"


def case(rows: int, cols: int) -> ShapeCase:
    leaf = ArraySpec((rows, cols), "float32")
    sizes = {"config:rows": rows, "config:cols": cols}
    one = Signature((leaf,), {"tuple": [0]})
    return ShapeCase(f"{rows}", {"rows": rows, "cols": cols}, one, Signature((leaf,), 0), 0.0, 0, sizes)


def of(source: str, *, rows: int = 1024, cols: int = 1024) -> Workload:
    shapes = replace(case(rows, cols), config={})
    small = (case(64, 256), case(40, 384))
    made = workload(("x",), leaves=1)
    return replace(made, source=source, shapes=(shapes,), test_shapes=small, has_starting_kernel=True)


def run(code: str, *arguments: Any) -> Any:
    module: dict[str, Any] = {}
    exec(compile(code, "best.py", "exec", dont_inherit=True), module)
    return module["workload"](*arguments)


class Array:
    """Something with a shape."""

    def __init__(self, *shape: int) -> None:
        self.shape = shape


def test_what_the_kernel_needs_is_kept_and_nothing_else() -> None:
    made = starting.read(of(OP.read_text()))
    code = made.write({"BLOCK_ROWS": 8})
    assert static.problems(code) == []
    tree = ast.parse(code)
    names = [n.name for n in tree.body if isinstance(n, ast.FunctionDef)]
    assert names == ["_softmax_block", "starting_kernel", "workload"]
    assert "create_inputs" not in code and "TEST_SHAPES" not in code and "__main__" not in code
    assert "# One block of rows at a time.\ndef starting_kernel" in code and "# what fits anywhere" in code
    assert ast.get_docstring(tree) == "toy: the op's own starting kernel." and "\n\n\n\n" not in code


def test_sizes_in_config_are_read_off_the_inputs() -> None:
    """The candidate is one file, and is judged at shapes that CONFIG does not know."""
    code = starting.read(of(OP.read_text())).write({})
    assert "    CONFIG.update({'rows': x.shape[0], 'cols': x.shape[1]})\n    return starting_kernel(x)\n" in code
    source = 'CONFIG = {"rows": 1024, "cols": 1, "scale": 3}\ndef starting_kernel(x):\n    return dict(CONFIG)\n'
    assert run(starting.read(of(source)).write({}), Array(40, 384)) == {"rows": 40, "cols": 384, "scale": 3}


def test_a_config_that_the_kernel_does_not_read_is_left_out() -> None:
    source = 'CONFIG = {"rows": 8}\nBLOCK = 16\ndef starting_kernel(x):\n    return BLOCK\n'
    code = starting.read(of(source)).write({"BLOCK": 32})
    assert "CONFIG" not in code and run(code, None) == 32


def test_overrides_of_the_scored_case_hold() -> None:
    source = 'CONFIG = {"mode": "a"}\ndef starting_kernel(x):\n    return CONFIG["mode"]\n'
    one = of(source)
    made = replace(one, shapes=(replace(one.primary, config={"mode": "b"}, knobs={}),))
    assert run(starting.read(made).write({}), None) == "b"


def test_its_tunables() -> None:
    assert starting.read(of(OP.read_text())).space == {
        "BLOCK_ROWS": [8, 16, 32],
        "dimension_semantics": [["parallel"], ["arbitrary"]],
    }


def space(source: str, largest: int = 4096) -> dict[str, list[Any]]:
    return {t.name: list(t.values) for t in find(ast.parse(source).body, largest)}


@pytest.mark.parametrize(
    ("source", "wanted"),
    [
        ("BM, BN = 128, 512", {"BM": [128, 256, 512], "BN": [512, 1024, 256, 2048, 128]}),
        ("def f(x, *, block_m=256, causal=1): pass", {"block_m": [256, 512, 128, 1024]}),
        ("f(x, tile_k=512)", {"tile_k": [512, 1024, 256, 2048, 128]}),
        ("TUNED_PARAMS = {'block_rows': 8, 'n': 3}", {"block_rows": [8, 16, 32]}),
        ("def f(x, rows=64):\n    return pl.BlockSpec((rows, 128), g)", {"rows": [64, 128, 32, 256, 16]}),
        ("N = 64\nw = min(N, 9)\npl.BlockSpec((8, w), g)", {"N": [64, 128, 32, 256, 16]}),
        ("N = 256\npl.BlockSpec(block_shape=(8, N))", {"N": [256, 512, 128, 1024]}),
        ("LANES = 128\nNUM_BLOCKS = 16\nHIDDEN = 512\nBLOCK = 7\nSTEPS = 8", {}),
        ("BLOCK = 4096", {"BLOCK": [4096, 2048, 1024]}),
        ("BLOCK = True\nTILE = 'x'", {}),
        ("def f(block=8): pass\nf(block=16)", {"block": [8, 16, 32], "block_2": [16, 32, 8, 64]}),
    ],
)
def test_block_sizes_are_found_by_name_or_by_use(source: str, wanted: dict[str, list[int]]) -> None:
    assert space(source) == wanted


def test_parallel_axes_may_become_arbitrary_and_no_others() -> None:
    found = space("P(dimension_semantics=('parallel', 'parallel', 'arbitrary'))")["dimension_semantics"]
    assert found[0] == ["parallel", "parallel", "arbitrary"] and len(found) == 4
    assert all(axes[2] == "arbitrary" for axes in found)
    assert space("P(dimension_semantics=('arbitrary',))") == {} == space("P(dimension_semantics=axes)")


def test_literals_are_replaced_where_they_stand() -> None:
    source = (
        "é = 'ü'; BLOCK = 64  # BLOCK = 64\n"
        "def starting_kernel(x, *, tile=(\n    128\n)):\n    '''BLOCK = 64'''\n    return (BLOCK, tile, é)\n"
    )
    code = starting.read(of(source)).write({"BLOCK": 256})
    assert "BLOCK = 256  # BLOCK = 64" in code and run(code, None) == (256, 128, "ü")


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("def workload(x): return x\ndef starting_kernel(x): return workload(x)\n", "calls workload"),
        ("def f(): starting_kernel = 1\n", "no `starting_kernel`"),
    ],
)
def test_a_starting_kernel_that_cannot_stand_alone_is_refused(source: str, reason: str) -> None:
    made = OfflineProposer(TablePlanner({"fast": Space({"block_rows": [8]})}), kernel)
    first = made.propose(brief(passages("fast"), op=of(source)))
    assert reason in made.refused["starting_kernel"]
    assert first is not None and first.origin == "catalog:fast"
    with pytest.raises(WorkloadError, match=reason):
        starting.read(of(source))


def test_it_is_tried_before_the_library_and_then_tuned() -> None:
    made = OfflineProposer(TablePlanner({"fast": Space({"block_rows": [8]})}), kernel)
    found: list[Candidate] = []
    op = of(OP.read_text())
    for i in range(4):
        candidate = made.propose(brief(passages("fast"), op=op, trial=i))
        assert candidate is not None
        made.observe(finished(i, candidate, 50.0))
        found.append(candidate)
    assert [c.origin for c in found[:2]] == ["starting", "catalog:fast"]
    assert found[0].params == {"BLOCK_ROWS": 8, "dimension_semantics": ["parallel"]}
    assert {c.origin for c in found[2:]} == {"starting"} and len({c.id for c in found}) == 4

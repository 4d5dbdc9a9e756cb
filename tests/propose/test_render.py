"""A reference kernel becomes a candidate's file: readable, standing alone, and called as the op is."""

from __future__ import annotations

import ast
import keyword
from dataclasses import replace
from typing import Any

import pytest
from propose_standins import BINDING, SOURCE, kernel, workload

from aka.evaluate import static
from aka.propose.render import render, tree_expression
from aka.propose.source import leaf_paths
from aka.types import Signature


def run(code: str, *arguments: Any) -> Any:
    """Run a rendered file with nothing but what it imports itself."""
    module: dict[str, Any] = {}
    exec(compile(code, "best.py", "exec", dont_inherit=True), module)
    return module["workload"](*arguments)


def test_what_only_the_library_needs_is_gone_and_the_rest_stays() -> None:
    code = render(kernel(), BINDING, {"block_rows": 128}, workload())
    top = [n.name for n in ast.parse(code).body if isinstance(n, ast.FunctionDef)]
    assert top == ["_body", "kernel", "workload"] and static.problems(code) == []
    assert "Prose" not in code and "The meaning of the op" not in code and "functools.cache" not in code
    assert "# The work itself.\ndef _body" in code and "    # A comment inside." in code
    assert "LANES = 128  # of a vector register" in code and code.count("TUNED_PARAMS =") == 1
    assert "\n\n\n\n" not in code and code.endswith("\n") and not code.endswith("\n\n")
    assert ast.get_docstring(ast.parse(code)) == "toy: Kernel scale-add (reference kernel scale-add)."


def test_it_runs_with_its_parameters_and_statics() -> None:
    code = render(kernel(), BINDING, {"block_rows": 128}, workload())
    assert "TUNED_PARAMS = {'block_rows': 128}" in code
    assert "    return kernel(x, scale, eps=1e-05, block_rows=TUNED_PARAMS['block_rows'])\n" in code
    assert run(code, 2.0, 3.0) == 6.0 + 1e-5


def test_swapped_arguments_keep_the_ops_names() -> None:
    code = render(kernel(), replace(BINDING, arguments=(1, 0)), {}, workload(("gain", "data")))
    assert "def workload(gain, data):\n    return kernel(data, gain, eps=1e-05)" in code
    assert "TUNED_PARAMS = {'block_rows': 256}" in code and "block_rows=TUNED_PARAMS" not in code.splitlines()[-1]


@pytest.mark.parametrize("name", ["kernel", "TUNED_PARAMS", "LANES", "_body", "jnp", "lambda", "input", "vars", "open"])
def test_an_argument_name_that_would_collide_gets_an_underscore(name: str) -> None:
    code = render(kernel(), BINDING, {"block_rows": 1}, workload((name, f"{name}_")))
    assert static.problems(code) == [] and run(code, 2.0, 3.0) == 6.0 + 1e-5
    made = ast.parse(code).body[-1]
    assert isinstance(made, ast.FunctionDef)
    names = [a.arg for a in made.args.args]
    assert len(set(names)) == 2 and not any(keyword.iskeyword(n) or n == name for n in names)


def test_pytrees_are_taken_apart_and_put_together() -> None:
    tree = {"tuple": [{"dict": {"w": 1, "none": None}}, {"list": [0]}]}
    code = render(kernel(), BINDING, {}, workload(("params", "xs"), tree, {"dict": {"y": {"tuple": [0]}}}))
    assert "kernel(xs[0], params['w'], " in code
    assert run(code, {"w": 3.0, "none": None}, [2.0]) == {"y": (6.0 + 1e-5,)}


def test_several_outputs_keep_their_structure() -> None:
    source = SOURCE.replace("return _body(x, scale, eps, block_rows)", "return x, scale")
    made = render(kernel(source=source), BINDING, {}, workload(outputs={"dict": {"a": {"list": [1]}, "b": 0}}))
    assert run(made, 2.0, 3.0) == {"a": [3.0], "b": 2.0}


def test_names_from_the_op_cannot_break_the_file() -> None:
    code = render(kernel(), BINDING, {}, workload(name='x"""\nimport os\\'))
    assert len([n for n in ast.parse(code).body if isinstance(n, ast.Import)]) == 3
    assert run(code, 2.0, 3.0) == 6.0 + 1e-5


@pytest.mark.parametrize("separator", ["\x0c", "\u2028", "\x1c"])
def test_lines_are_counted_as_python_counts_them(separator: str) -> None:
    source = SOURCE.replace("# Defaults", f"# De{separator}faults")
    assert run(render(kernel(source=source), BINDING, {}, workload()), 2.0, 3.0) == 6.0 + 1e-5


def test_windows_line_ends_render_alike() -> None:
    plain, crlf = (render(kernel(source=s), BINDING, {}, workload()) for s in (SOURCE, SOURCE.replace("\n", "\r\n")))
    assert plain == crlf


def test_leaf_paths_and_tree_expressions() -> None:
    inputs = Signature((), {"tuple": [0, {"dict": {"b": 2, "a": {"tuple": [1, 3]}}}, None]})
    assert leaf_paths(inputs, ["x", "p", "n"]) == ["x", "p['a'][0]", "p['b']", "p['a'][1]"]
    assert tree_expression({"tuple": [0]}, "m") == "(m[0],)"
    assert tree_expression({"list": [1, None, {"dict": {"k": 0}}]}, "m") == "[m[1], None, {'k': m[0]}]"

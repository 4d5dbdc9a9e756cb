"""Every template of every op computes the op: its source is run as a candidate would be, at sizes it was not planned
for, with blocks that take several steps."""

from __future__ import annotations

import ast
import functools
import types
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from fuse_ops import CASES, Case, arguments
from jax.experimental.pallas import tpu as pltpu

from aka.evaluate import static
from aka.fuse.plan import Machine
from aka.fuse.templates import templates

MACHINE = Machine(112 << 20, 819e9, {"bfloat16": 197e12, "int8": 393e12}, 3e12)


@functools.cache
def found_for(name: str) -> tuple[list[Any], dict[str, str]]:
    return written(next(c for c in CASES if c.name == name))


def written(case: Case) -> tuple[list[Any], dict[str, str]]:
    avals = [[jax.ShapeDtypeStruct(s, jnp.dtype(d)) for s, d in specs] for specs in case.sizes]
    programs = [jax.make_jaxpr(case.op)(*a) for a in avals]
    return templates(programs, [f"a{i}" for i in range(len(avals[0]))], {}, MACHINE, case.name)


def loaded(source: str) -> types.ModuleType:
    module = types.ModuleType("template")
    exec(compile(source, "template.py", "exec"), module.__dict__)
    return module


def small(module: types.ModuleType) -> dict[str, int]:
    """About a third of the largest block of every parameter: several steps, and quick in the interpreter."""
    space = module.search_space([], "v5e")
    return {name: min(values, key=lambda v: abs(v - max(values) / 3)) for name, values in space.items()}


def some_quick() -> list[Any]:
    """Every third op now, the others in the slow run: the interpreter takes seconds for each."""
    return [pytest.param(c, marks=[] if i % 3 == 0 else [pytest.mark.slow], id=c.name) for i, c in enumerate(CASES)]


@pytest.mark.parametrize("case", some_quick())
def test_templates_compute_the_op(case: Case) -> None:
    found, refused = found_for(case.name)
    assert len(found) >= case.templates, refused
    for size, specs in enumerate(case.sizes[:2]):
        given = arguments(specs, min(case.top, specs[0][0][-1]))
        with jax.default_matmul_precision("highest"):
            want = jax.tree.leaves(case.op(*given))
        for template in found if size == 0 else found[:1]:
            module = loaded(template.source)
            with pltpu.force_tpu_interpret_mode():
                got = jax.tree.leaves(module.kernel(*given, **small(module)))
            assert [(g.shape, g.dtype) for g in got] == [(w.shape, w.dtype) for w in want], template.name
            for g, w in zip(got, want, strict=True):
                tolerance = 3e-2 if any(d == "bfloat16" for _, d in specs) else 2e-3
                wide, exact = np.asarray(g, np.float32), np.asarray(w, np.float32)
                typical = float(np.sqrt(np.mean(exact**2)))
                np.testing.assert_allclose(wide, exact, rtol=tolerance, atol=tolerance * typical)


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_templates_have_the_form_of_the_library_and_pass_the_static_gate(case: Case) -> None:
    for template in found_for(case.name)[0]:
        assert static.problems(template.source) == []
        module = loaded(template.source)
        space = module.search_space([], "v5e")
        assert list(space) == list(module.TUNED_PARAMS)
        assert all(module.TUNED_PARAMS[name] == values[0] for name, values in space.items())
        assert ast.get_docstring(ast.parse(template.source))


REFUSED = {
    "sorting": (lambda x: jnp.sort(x, -1), "sort"),
    "a scan": (lambda x: jnp.cumsum(x, -1), "cumsum"),
    "a table": (lambda x: x[jnp.argmax(x, 0)], "gather"),
    "constants": (lambda x: x * jnp.asarray(np.arange(384.0)[: x.shape[1]], x.dtype), "array of constants"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_no_template_covers_is_refused_with_the_reason(name: str) -> None:
    op, reason = REFUSED[name]
    sizes = [jax.ShapeDtypeStruct(s, jnp.float32) for s in ((96, 384), (40, 256))]
    found, refused = templates([jax.make_jaxpr(op)(s) for s in sizes], ["x"], {}, MACHINE, name)
    assert not found
    assert any(reason in text for text in refused.values()), refused


def test_a_size_that_no_argument_shows_is_refused() -> None:
    programs = [
        jax.make_jaxpr(lambda x, g=groups: x.reshape(x.shape[0], g, -1).sum(-1))(jax.ShapeDtypeStruct(s, jnp.float32))
        for s, groups in (((96, 384), 3), ((40, 256), 4))
    ]
    found, refused = templates(programs, ["x"], {}, MACHINE, "groups")
    assert not found
    assert "CONFIG" in " ".join(refused.values())


def heads(groups: int) -> Any:
    """Query heads are normalized, key heads are not: how many of each there are, no shape tells."""

    def op(x: Any) -> Any:
        split = x.reshape(x.shape[0], -1, 128)
        query, key = split[:, :groups], split[:, groups:]
        return query * jax.lax.rsqrt(jnp.mean(query * query, -1, keepdims=True)), 2.0 * key

    return op


def test_a_size_of_the_ops_config_alone_is_read_from_the_kernels_config() -> None:
    sizes = [(96, 6, 2), (64, 5, 3), (40, 7, 4)]
    programs = [jax.make_jaxpr(heads(q))(jax.ShapeDtypeStruct((n, 128 * h), jnp.float32)) for n, h, q in sizes]
    found, refused = templates(programs, ["x"], {(2, 3, 4): "query_heads"}, MACHINE, "heads")
    assert found, refused
    for template in found:
        module = loaded(template.source)
        assert module.CONFIG == {"query_heads": 2}
        assert static.problems(template.source) == []
        for rows, count, groups in sizes:
            module.CONFIG["query_heads"] = groups
            x = jnp.asarray(np.random.default_rng(0).normal(size=(rows, 128 * count)), jnp.float32)
            with pltpu.force_tpu_interpret_mode():
                got = module.kernel(x, **small(module))
            for one, other in zip(got, heads(groups)(x), strict=True):
                np.testing.assert_allclose(one, other, rtol=2e-3, atol=2e-3)


def test_copies_that_xla_makes_between_kernels_count() -> None:
    """A reshape that changes the last dimension moves every tile; one that does not is free."""
    sizes = [(96, 6, 2), (64, 5, 3), (40, 7, 4)]
    programs = [jax.make_jaxpr(heads(q))(jax.ShapeDtypeStruct((n, 128 * h), jnp.float32)) for n, h, q in sizes]
    found, _ = templates(programs, ["x"], {(2, 3, 4): "query_heads"}, MACHINE, "heads")
    moved = 2 * 96 * 6 * 128 * 4
    assert found[0].between_us == pytest.approx(1e6 * moved / MACHINE.bytes_per_s)
    rows = [jax.make_jaxpr(lambda x: jnp.exp(x) / 2)(jax.ShapeDtypeStruct((n, 256), jnp.float32)) for n in (96, 64)]
    assert {t.between_us for t in templates(rows, ["x"], {}, MACHINE, "rows")[0]} == {0.0}


def test_counts_over_more_rows_than_fit_are_cut_behind_the_choice() -> None:
    def hits(logits: Any, labels: Any) -> Any:
        return jnp.sum(jnp.argmax(logits, -1) == labels)

    avals = [
        [jax.ShapeDtypeStruct((n, v), jnp.float32), jax.ShapeDtypeStruct((n,), jnp.int32)]
        for n, v in ((4096, 128256), (512, 2048), (256, 1000))
    ]
    found, refused = templates([jax.make_jaxpr(hits)(*a) for a in avals], ["logits", "labels"], {}, MACHINE, "hits")
    assert found and found[0].name.startswith("2-kernels"), refused


@pytest.mark.parametrize(
    ("name", "spelled"),
    [
        ("bias_corrected", "jnp.power(jnp.full((1, 1), 0.9), "),
        ("cube_root_scaled", "jnp.power(jnp.abs(jnp.full((1, 1), "),
    ],
)
def test_a_scalars_power_is_a_vectors(name: str, spelled: str) -> None:
    """libtpu 0.0.42.1 fails to legalize `math.powf` on scalars."""
    found, refused = found_for(name)
    assert found and spelled in found[0].source, refused

"""The first wall: what a candidate may import and touch. Each row is a way round it that somebody could write."""

from __future__ import annotations

import importlib
import types
from pathlib import Path

import pytest

from aka.evaluate import static

TREE = Path(__file__).parents[2]
HONEST = [
    *sorted((TREE / "reference_kernels").glob("*/*.py")),
    TREE / "tests" / "artifact" / "artifact_kernels.py",
]


@pytest.mark.parametrize("path", HONEST, ids=lambda p: p.stem)
def test_kernels_pass(path: Path) -> None:
    """What the gate says of the hostile files is tested beside them."""
    assert static.problems(path.read_text()) == []


@pytest.mark.parametrize(
    "code",
    [
        "from __future__ import annotations",
        "import numpy as np\nx = np.float32(1) + np.prod((2, 3))",
        "from functools import partial\nimport functools\n@functools.cache\ndef f(): return partial(max, 1)",
        "def workload(input, eval_steps): return input",
        "import jax.experimental.pallas as pl\nfrom jax.experimental.pallas import tpu as pltpu\npltpu.VMEM, pl.ANY",
        "class Body:\n    def __init__(self): self._x = 1\n    def __call__(self, x): return self._x",
        "import jax\nf = jax.jit(lambda x: jax.numpy.exp(x))\ng = jax.nn.gelu",
        "from typing import Any\nfrom dataclasses import dataclass, field\nfrom collections.abc import Callable",
        "import jax\nx = getattr(object(), 'shape', None)",
    ],
)
def test_ordinary_code_passes(code: str) -> None:
    assert static.problems(code) == []


@pytest.mark.parametrize(
    ("code", "line", "words"),
    [
        ("import os", 1, "import of `os`"),
        ("import jax\nimport jax._src.config", 2, "import of `jax._src.config`"),
        ("def f():\n    from subprocess import run", 2, "import of `subprocess`"),
        ("from . import x", 1, "import of `.`"),
        ("from jax import config", 1, "`jax.config`"),
        ("from jax.numpy import *", 1, "one by one"),
        ("from jax import _src", 1, "one by one"),
        ("from dataclasses import sys", 1, "`dataclasses.sys`"),
        ("import typing\ntyping.sys.modules['os']", 2, "`typing.sys`"),
        ("import enum as e\ne.bltns.open('f')", 2, "`enum.bltns`"),
        ("import operator\noperator.attrgetter('__class__')", 2, "`operator.attrgetter`"),
        ("from operator import methodcaller", 1, "`operator.methodcaller`"),
        ("import typing\ntyping.get_type_hints(f)", 2, "`typing.get_type_hints`"),
        ("import functools\nfunctools.singledispatch", 2, "`functools.singledispatch`"),
        ("import jax\njax.config.update('a', 1)", 2, "`jax.config`"),
        ("import jax\njax.experimental.io_callback", 2, "`jax.experimental.io_callback`"),
        ("import jax\njax.pure_callback(f, x, x)", 2, "`jax.pure_callback`"),
        ("import jax.numpy as jnp\njnp.load('secret.npy', allow_pickle=True)", 2, "`jax.numpy.load`"),
        ("import jax\njax.numpy.fromfile('secret')", 2, "`jax.numpy.fromfile`"),
        ("from jax.numpy import save", 1, "`jax.numpy.save`"),
        ("import numpy as np\nnp.load('x')", 2, "`numpy.load`"),
        ("from jax.experimental.pallas import tpu as t\nt.core", 2, "tpu.core"),
        ("import jax\nj = jax\nj.config", 2, "module `jax` as a value"),
        ("import jax\n(lambda m: m.config)(jax)", 2, "module `jax` as a value"),
        ("import jax\ne = jax.experimental\ne.io_callback", 2, "module `jax.experimental` as a value"),
        ("import jax\ngetattr(jax, 'config')", 2, "module `jax` as a value"),
        ("g = getattr\ng(x, '__class__')", 1, "`getattr` as a value"),
        ("getattr(x, '__cl' + 'ass__')", 1, "computed or private"),
        ("getattr(x, 'gi_frame')", 1, "computed or private"),
        ("().__class__.__mro__", 1, "private names"),
        ("import jax\njax._src", 2, "private names"),
        ("match x:\n    case object(__class__=c): pass", 2, "in a pattern"),
        ("g = (i for i in x)\ng.gi_frame.f_back.f_globals", 2, "frames are off limits"),
        ("import jax.numpy as jnp\njnp.exp = abs", 2, "may not change a library"),
        ("import jax.numpy as jnp\ndel jnp.exp", 2, "may not change a library"),
        ("open('x')", 1, "`open`"),
        ("f = eval", 1, "`eval`"),
        ("__builtins__['open']", 1, "`__builtins__`"),
        ("setattr(x, 'y', 1)", 1, "`setattr`"),
        ("def f(:", 1, "syntax error"),
        ("x = 'a\0b'", 1, "null bytes"),
        ("x" + ".a" * 50_000, 1, "cannot be parsed"),
        ("-" * 100_000 + "1", 1, "cannot be parsed"),
    ],
)
def test_ways_round_are_refused_with_their_line(code: str, line: int, words: str) -> None:
    found = static.problems(code)
    assert any(f.startswith(f"line {line}: ") and words in f for f in found), found


def test_every_problem_is_told_and_each_once() -> None:
    found = static.problems("import os\nimport sys\nopen('x')\n")
    assert [f.partition(":")[0] for f in found] == ["line 1", "line 2", "line 3"]


@pytest.mark.parametrize("module", sorted(static.MODULES - {m for m in static.MODULES if m.startswith("jax")}))
def test_no_allowed_module_of_python_leads_to_another(module: str) -> None:
    """`dataclasses.sys` would be a door: the public modules that a module holds must be shut."""
    held = vars(importlib.import_module(module))
    doors = [n for n, value in held.items() if isinstance(value, types.ModuleType) and not n.startswith("_")]
    local = module.replace(".", "_")
    open_ = [n for n in doors if not static.problems(f"import {module} as {local}\n{local}.{n}.x")]
    assert open_ == []

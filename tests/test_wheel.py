"""What is installed: the wheel carries the library, and works from any folder with no checkout in sight."""

from __future__ import annotations

import json
import tarfile
import zipfile
from pathlib import Path

import pytest
from wheel_venv import ROOT, Fresh, build, build_from_sdist, files

LIBRARY = {"knowledge": "*.md", "reference_kernels": "*.py"}
OP = """
import jax
import jax.numpy as jnp

CONFIG = {"rows": 512, "cols": 1024}
TEST_SHAPES = [{"rows": 64, "cols": 256}]


def create_inputs(dtype=jnp.float32):
    return (jax.random.normal(jax.random.key(0), (CONFIG["rows"], CONFIG["cols"]), dtype),)


def workload(x):
    return jax.nn.softmax(x, axis=-1)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("wheel")


@pytest.fixture(scope="module")
def wheel(folder: Path) -> Path:
    return build("wheel", folder)


@pytest.fixture(scope="module")
def sdist(folder: Path) -> Path:
    return build("sdist", folder)


def names(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


def library(top: Path) -> set[str]:
    """Every document of the tree's library, by its path."""
    found = {f.relative_to(top).as_posix() for name, kind in LIBRARY.items() for f in (top / name).rglob(kind)}
    return {name for name in found if "__pycache__" not in name}


def test_the_wheel_holds_package_library_and_licence(wheel: Path) -> None:
    held, documents = names(wheel), library(ROOT)
    assert len(documents) > 15
    assert {f"aka/data/{name}" for name in documents} == {n for n in held if n.startswith("aka/data/")}
    modules = {f.relative_to(ROOT).as_posix() for f in (ROOT / "aka").rglob("*.py")}
    assert modules <= held, "a package of aka is missing from the wheel"
    assert {"aka/report/templates/run.md.j2", "aka/kb/data/minilm-vocab.txt"} <= held
    licences = {Path(name).name for name in held if "/licenses/" in name}
    assert licences == {"LICENSE", "NOTICE"}


def test_the_wheel_holds_nothing_else(wheel: Path) -> None:
    tops = {name.split("/")[0] for name in names(wheel)}
    assert len(tops) == 2 and "aka" in tops and all(t == "aka" or t.endswith(".dist-info") for t in tops)
    assert not [name for name in names(wheel) if "test" in name or name.endswith((".pyc", ".sqlite3"))]


def test_the_sdist_gives_the_same_wheel(sdist: Path, wheel: Path, tmp_path: Path) -> None:
    with tarfile.open(sdist) as archive:
        held = {name.partition("/")[2] for name in archive.getnames()}
    assert {
        "pyproject.toml",
        "setup.py",
        "LICENSE",
        "NOTICE",
        "README.md",
        "CHANGELOG.md",
        "tests/test_wheel.py",
    } <= held
    assert library(ROOT) <= held and not [name for name in held if name.startswith(("runs/", ".venv/", "index/gen"))]
    assert names(build_from_sdist(sdist, tmp_path)) == names(wheel)


@pytest.fixture(scope="module")
def fresh(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Fresh:
    made = Fresh(tmp_path_factory.mktemp("fresh"))
    made.make(wheel)
    return made


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_it_works_outside_a_checkout(fresh: Fresh, tmp_path: Path) -> None:
    """One test, since the order matters: each step finds only what those before it left."""
    where = "import aka, aka.kb.places as p; print(aka.__file__, p.find_places())"
    found = fresh.run(fresh.python, "-P", "-c", where, cwd=tmp_path).stdout
    assert found.startswith(str(fresh.site / "aka")) and str(ROOT) not in found, found
    installed = files(fresh.folder / "venv")

    done = fresh.aka("kb", "search", "scoped vmem oom", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)[0]["id"] == "c03" and f"building the index in {fresh.cache}" in done.stderr
    assert list(tmp_path.iterdir()) == [], "a search leaves nothing where it is asked"

    op = tmp_path / "op.py"
    op.write_text(OP)
    done = fresh.aka("optimize", op, "--max-trials", "1", "--json", cwd=tmp_path)
    assert done.returncode in (0, 1), done.stderr
    result = json.loads(done.stdout)
    assert result["status"] == ("no_improvement" if done.returncode else "improved")
    assert result["trials"] == 1 and result["baseline_us"] > 0 and result["versions"]["aka-kernels"]
    assert "building the index" not in done.stderr, "the index of the first search serves"

    told = fresh.aka("report", "last", "--json", cwd=tmp_path)
    assert told.returncode == 0, told.stderr
    (trial,) = json.loads(told.stdout)["trials"]
    assert trial["verdict"] == "ACCEPT" and trial["us"] > 0
    kernel = fresh.site / "aka/data/reference_kernels/softmax/row_blocks.py"
    checked = fresh.aka("check", kernel, "--op", op, "--json", cwd=tmp_path)
    assert checked.returncode == 0 and json.loads(checked.stdout)["verdict"] == "ACCEPT", checked.stderr

    assert files(fresh.folder / "venv") == installed, "something wrote into the environment"
    assert {path.name for path in tmp_path.iterdir()} == {"op.py", "runs"}
    assert {path.name for path in fresh.cache.iterdir()} == {"aka"}
    assert files(fresh.home) == {} and files(fresh.temporary) == {}


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_doctor_needs_no_checkout(fresh: Fresh, tmp_path: Path) -> None:
    done = fresh.aka("doctor", "--json", cwd=tmp_path)
    checks = json.loads(done.stdout)
    assert done.returncode == 0 and checks["compiler"]["ok"], done.stderr
    assert checks["library"]["ok"] and str(fresh.cache) in str(checks["library"])
    assert list(tmp_path.iterdir()) == []

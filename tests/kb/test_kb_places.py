"""Where the library is found: beside the package in a checkout, inside it where it is installed."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
_FIND = "from aka.kb.places import find_places as f; p = f(); print(p.knowledge, p.kernels, p.index, sep='\\n')"


def installed(site: Path, *, data: bool) -> list[str]:
    """The places that the modules find where they lie in `site`, beside a folder called knowledge of somebody else."""
    for name in ("__init__.py", "errors.py", "kb/places.py"):
        (site / "aka" / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / "aka" / name, site / "aka" / name)
    (site / "knowledge").mkdir()
    for name in ("knowledge", "reference_kernels") if data else ():
        (site / "aka" / "data" / name).mkdir(parents=True)
    env = {"PYTHONPATH": str(site), "XDG_CACHE_HOME": str(site / "cache")}
    command = [sys.executable, "-S", "-c", _FIND]
    return subprocess.run(command, env=env, capture_output=True, text=True, check=True, cwd=site).stdout.splitlines()


@pytest.mark.parametrize("data", [True, False])
def test_an_installed_package_has_its_own_library_and_an_index_in_the_cache(tmp_path: Path, data: bool) -> None:
    own = [str(tmp_path / "aka" / "data" / name) for name in ("knowledge", "reference_kernels")]
    expected = [*(own if data else ("None", "None")), str(tmp_path / "cache" / "aka" / "index")]
    assert installed(tmp_path, data=data) == expected


def test_a_checkout_has_everything_beside_the_package() -> None:
    from aka.kb.places import find_places

    found = find_places()
    assert (found.knowledge, found.kernels) == (ROOT / "knowledge", ROOT / "reference_kernels")
    assert found.index == ROOT / "index"

"""Builds wheel and sdist from a copy of the tree, and a fresh environment that has nothing of ours but the wheel."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
_LEFT_OUT = ("*.egg-info", "__pycache__", "build", "dist", "gen-*", "runs")
_BUILD = "import sys, setuptools.build_meta as b; print(getattr(b, 'build_' + sys.argv[1])(sys.argv[2]))"


def build(kind: str, folder: Path) -> Path:
    """A "wheel" or an "sdist" in `folder`, made from a copy: a build leaves its marks where it runs."""
    copy = folder / f"tree-{kind}"
    copy.mkdir(parents=True)
    for path in ROOT.iterdir():
        if path.is_file():
            shutil.copy2(path, copy)
        elif not path.name.startswith(".") and path.name not in ("runs", "build", "dist"):
            shutil.copytree(path, copy / path.name, ignore=shutil.ignore_patterns(*_LEFT_OUT))
    return _built(kind, copy, folder)


def build_from_sdist(sdist: Path, folder: Path) -> Path:
    """The wheel that an unpacked sdist gives."""
    shutil.unpack_archive(sdist, folder / "unpacked", filter="data")
    return _built("wheel", next((folder / "unpacked").iterdir()), folder)


def _built(kind: str, tree: Path, folder: Path) -> Path:
    command = [sys.executable, "-c", _BUILD, kind, str(folder)]
    done = subprocess.run(command, cwd=tree, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return folder / done.stdout.split()[-1]


@dataclass(frozen=True)
class Fresh:
    """An environment in `folder`: the wheel's own files, and beside them the libraries of the project's environment,
    by a line in a `.pth` (such a folder's own `.pth` files are not read: the project's checkout stays out of sight).
    `cache`, `home` and `temporary` are its only places to write, apart from where it runs."""

    folder: Path

    @property
    def python(self) -> Path:
        return self.folder / "venv" / "bin" / "python"

    @property
    def cache(self) -> Path:
        return self.folder / "cache"

    @property
    def home(self) -> Path:
        return self.folder / "home"

    @property
    def temporary(self) -> Path:
        return self.folder / "tmp"

    @property
    def site(self) -> Path:
        version = f"python{sys.version_info.major}.{sys.version_info.minor}"
        return self.folder / "venv" / "lib" / version / "site-packages"

    def make(self, wheel: Path) -> None:
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", self.folder / "venv"], check=True, timeout=120)
        pip = [sys.executable, "-m", "pip", "--python", self.python, "install", "--no-deps", "--no-index", "--quiet"]
        subprocess.run([*map(str, pip), str(wheel)], check=True, timeout=300)
        (self.site / "libraries.pth").write_text(sysconfig.get_path("purelib") + "\n")
        self.home.mkdir()
        self.temporary.mkdir()

    def run(self, *command: str | Path, cwd: Path, timeout_s: float = 600) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            list(map(str, command)), capture_output=True, text=True, cwd=cwd, env=self._env(), timeout=timeout_s
        )

    def aka(self, *arguments: str | Path, cwd: Path, timeout_s: float = 600) -> subprocess.CompletedProcess[str]:
        return self.run(self.python.parent / "aka", *arguments, cwd=cwd, timeout_s=timeout_s)

    def _env(self) -> Mapping[str, str]:
        places = {"HOME": self.home, "TMPDIR": self.temporary, "XDG_CACHE_HOME": self.cache}
        kept = {name: os.environ[name] for name in ("PATH", "LANG", "AKA_SANDBOX") if name in os.environ}
        return {**kept, "PYTHONDONTWRITEBYTECODE": "1", **{name: str(path) for name, path in places.items()}}


def files(folder: Path) -> dict[str, tuple[int, int]]:
    """Every file below `folder` with its size and time of change."""
    found = ((path, path.stat()) for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): (stat.st_size, stat.st_mtime_ns) for path, stat in found}

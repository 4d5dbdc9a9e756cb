"""What a figure was taken on: versions, cores and how busy they were."""

from __future__ import annotations

import os
import platform
from pathlib import Path

from aka.cli import compose


def line() -> str:
    """One line; the load is the average of the last minute, which tells whether the figures can be trusted."""
    versions = ", ".join(f"{name} {version}" for name, version in compose.versions().items())
    return f"{_model()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}; {versions}"


def shown(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds >= 1 else f"{seconds * 1e3:.0f} ms"


def _model() -> str:
    path = Path("/proc/cpuinfo")
    lines = path.read_text().splitlines() if path.exists() else []
    names = [line.split(":")[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()

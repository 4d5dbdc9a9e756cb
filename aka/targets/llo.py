"""The compiler's dumps: simulated cycles per HLO op, and how full each unit's issue slots are.

Formats as libtpu 0.0.52 writes them, undocumented: one text proto per op, one bundle profile per module. What is
missing there comes back as absent, never as zero.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_PROTO_NAME = re.compile(r'hlo_op_name: "([^"]+)"')
_PROTO_CYCLES = re.compile(r"estimated_cycles: (\d+)")
_SECTION = re.compile(r"^HLO: %([\w.\-<>]+) = ", re.MULTILINE)
_ROW = re.compile(r"^ - ([\w]+)(?: (\w+))?: \((\d+)/(\d+)\)", re.MULTILINE)
# Rows of the bundle profile by unit; of a unit's several rows the fullest counts.
_UNITS = {
    "VECTOR_ALU": "valu",
    "VECTOR_EUP": "eup",
    "VECTOR_LOAD": "load",
    "VECTOR_LOAD_AND_MISC": "load",
    "VECTOR_STORE": "store",
    "VECTOR_STORE_AND_MISC": "store",
    "SCALAR_ALU": "scalar",
}
_STARVED = {"HBM_TO_VMEM_ESTIMATED_STARVATION", "VMEM_TO_HBM_ESTIMATED_STARVATION"}


@dataclass(frozen=True)
class Bundles:
    """The static schedule of one op: its VLIW bundles, and of each unit's issue slots the fraction used (0 to 1).

    Units: mxu, xlu, valu, eup, load, store, scalar. A loop's body counts once. `spills` and `fills` are instructions;
    `starved` is the fraction of bundles in which the compiler expects to wait for HBM.
    """

    bundles: int
    slots: dict[str, float]
    spills: int
    fills: int
    starved: float


def cycles(folder: str) -> dict[str, int]:
    """Simulated cycles by HLO op name, from every static profile in the folder."""
    found: dict[str, int] = {}
    for path in sorted(Path(folder).glob("*_static_llo_profile.textproto")):
        text = path.read_text(errors="replace")
        name, count = _PROTO_NAME.search(text), _PROTO_CYCLES.search(text)
        if name and count:
            found[name[1]] = int(count[1])
    return found


def bundles(folder: str) -> dict[str, Bundles]:
    """The static schedules by HLO op name, from the bundle profiles in the folder."""
    found: dict[str, Bundles] = {}
    for path in sorted(Path(folder).glob("*hlo-static-bundle-profile.txt")):
        found |= bundle_profile(path.read_text(errors="replace"))
    return found


def bundle_profile(text: str) -> dict[str, Bundles]:
    """One bundle profile's text; sections without an HLO op or without bundles are left out."""
    return {name: made for name, body in _sections(text) if (made := _bundles(body)) is not None}


def clear(folder: str) -> None:
    """Empty the dump folder: the compiler reads its path once, and adds files at every compile."""
    Path(folder).mkdir(parents=True, exist_ok=True)
    for path in Path(folder).iterdir():
        if path.is_file():
            path.unlink()


def _sections(text: str) -> Iterator[tuple[str, str]]:
    for match in _SECTION.finditer(text):
        end = text.find("\nHLO: ", match.end())
        yield match[1], text[match.end() : end if end >= 0 else len(text)]


def _bundles(body: str) -> Bundles | None:
    rows = {(unit, kind): (int(used), int(of)) for unit, kind, used, of in _ROW.findall(body)}
    count = rows.get(("VMEM_SPILL_COUNT", ""), (0, 0))[1]
    if not count:
        return None
    slots: dict[str, float] = {}
    for (name, _), (used, of) in rows.items():
        unit = _unit(name)
        if unit and of:
            slots[unit] = max(slots.get(unit, 0.0), round(used / of, 4))
    return Bundles(
        bundles=count,
        slots=slots,
        spills=rows[("VMEM_SPILL_COUNT", "")][0],
        fills=rows.get(("VMEM_FILL_COUNT", ""), (0, 0))[0],
        starved=max(rows.get((name, ""), (0, 0))[0] / count for name in _STARVED),
    )


def _unit(name: str) -> str | None:
    if name.startswith(("MXU_", "XLU_")):
        return name[:3].lower()
    return _UNITS.get(name)

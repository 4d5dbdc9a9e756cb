"""Ahead-of-time compilation for a TPU chip on a machine that has none: libtpu compiles for a described topology.

`environment` is plain Python, for the parent that starts a worker; everything else belongs in a worker, because a bad
program can take the whole process along. One process compiles for any number of chips.
"""

from __future__ import annotations

import contextlib
import math
import os
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from aka.targets import chips, errortext
from aka.types import Chip

if TYPE_CHECKING:
    from jax.export import Exported

_VMEM_LIMIT = re.compile(r'memory_space(?:\\22|"): ?1,[^{}]*?size(?:\\22|"): ?(\d+)')
_USED_VMEM = re.compile(r'"used_scoped_memory_configs":\[\{"memory_space":"1","offset":"\d+","size":"(\d+)"')
BUNDLE_DUMPS = ".*(final_hlo-static-per-bundle|hlo-static-bundle-profile).*"


@dataclass(frozen=True)
class CompileFailure:
    """Why the compiler refused a program. `code` is "compile_error", or "vmem_limit" where we refuse what it accepts.

    `message` is the first informative line, `evidence` the compiler's text without noise, at most 4 kB.
    """

    code: str
    message: str
    evidence: str


@dataclass(frozen=True)
class Compiled:
    """A compiled program: its optimized HLO text and what it needs of the device's memory.

    `vmem_bytes` is the largest scoped VMEM of any op, None if no op has any; `seconds` the compiler's wall time.
    """

    chip: str
    hlo_text: str
    argument_bytes: int
    output_bytes: int
    temp_bytes: int
    vmem_bytes: int | None
    seconds: float
    executable: Any


def environment(dump_dir: str | None, bundles: bool, cycles: bool = True) -> dict[str, str]:
    """Variables that a worker needs in its environment before it imports jax.

    With `dump_dir` and `cycles` every compile simulates its schedule and writes cycles there (slow: see
    `aka.targets.meter`); `bundles` adds the tables of issue slots. Pass `cycles=chip.cycle_profile`: the simulation
    aborts the process on chips that it does not know. libtpu reads the flags once, when it loads.
    """
    flags = ["--xla_tpu_check_llo_types=false"]  # without it v6e and tpu7x abort on dumps of packed values
    if dump_dir is not None and cycles:
        flags.append(f"--xla_jf_dump_static_llo_profile_to={dump_dir}")
    if dump_dir is not None and bundles:
        flags += [f"--xla_jf_dump_to={dump_dir}", "--xla_jf_dump_llo_text=true"]
        flags.append(f"--xla_jf_dump_llo_pass_label_regex={BUNDLE_DUMPS}")
    return {
        "JAX_PLATFORMS": "cpu",
        "TPU_SKIP_MDS_QUERY": "1",
        "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
        "TPU_LOG_DIR": "disabled",
        "TPU_WORKER_HOSTNAMES": "localhost",
        "TPU_ACCELERATOR_TYPE": "v5litepod-4",
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "LIBTPU_INIT_ARGS": " ".join(flags),
    }


def dump_dir() -> str | None:
    """Where this process's compiler dumps, from the flags that `environment` gave it."""
    match = re.search(r"--xla_jf_dump_(?:static_llo_profile_)?to=(\S+)", os.environ.get("LIBTPU_INIT_ARGS", ""))
    return match[1] if match else None


def device(chip: Chip | str) -> Any:
    """The first device of the chip's topology: good for shardings and compiles, holds no memory and runs nothing."""
    from jax.experimental import topologies

    return topologies.get_topology_desc(chips.chip(chip).topology, platform="tpu").devices[0]


@contextlib.contextmanager
def abstract_mesh(chip: Chip | str) -> Iterator[None]:
    """Trace and lower as on the chip: some Pallas rules ask which TPU they are for, and refuse "cpu"."""
    import jax
    import numpy as np

    mesh = jax.sharding.Mesh(np.array([device(chip)]), ("x",))
    with jax.sharding.use_abstract_mesh(mesh.abstract_mesh):
        yield


def compile(exported: Exported, chip: Chip | str) -> Compiled | CompileFailure:
    """Compile an artifact exported for platform "tpu" for one device of `chip`; the compiler's refusal is a value."""
    import jax
    from jax._src.pallas.mosaic.error_handling import MosaicError

    target = chips.chip(chip)
    refused = _vmem_limit(exported, target)
    if refused is not None:
        return refused
    start = time.monotonic()
    try:
        executable = _lower(exported, target).compile()
    except (jax.errors.JaxRuntimeError, MosaicError) as error:
        return CompileFailure("compile_error", *errortext.condense(str(error)))
    return _checked(executable, target, time.monotonic() - start)


def _vmem_limit(exported: Exported, target: Chip) -> CompileFailure | None:
    """The compiler clamps a limit above the chip's capacity without a word: such a kernel is meant for another chip."""
    limits = [int(n) for n in _VMEM_LIMIT.findall(exported.mlir_module())]
    physical = math.ceil(target.vmem_bytes / 2**20) * 2**20  # nominal size: the compiler keeps a sliver for itself
    if max(limits, default=0) <= physical:
        return None
    line = f"vmem_limit_bytes is {max(limits)}, but {target.name} has {target.vmem_bytes} bytes of VMEM per core"
    return CompileFailure("vmem_limit", line, line)


def _lower(exported: Exported, target: Chip) -> Any:
    import jax

    sharding = jax.sharding.SingleDeviceSharding(device(target))
    struct: Any = jax.ShapeDtypeStruct
    leaves = [struct(a.shape, a.dtype, sharding=sharding) for a in exported.in_avals]
    args, kwargs = jax.tree.unflatten(exported.in_tree, leaves)
    with abstract_mesh(target):
        # A program without arguments would otherwise compile for the host.
        jitted = jax.jit(exported.call, out_shardings=sharding)
        return jitted.trace(*args, **kwargs).lower(lowering_platforms=("tpu",))


def _checked(executable: Any, target: Chip, seconds: float) -> Compiled | CompileFailure:
    text = executable.as_text()
    memory = executable.memory_analysis()
    used = [int(n) for n in _USED_VMEM.findall(text)]
    held = memory.argument_size_in_bytes + memory.output_size_in_bytes + memory.temp_size_in_bytes
    held -= memory.alias_size_in_bytes
    if held > target.hbm_bytes:
        line = f"the program holds {held} bytes of HBM, but {target.name} has {target.hbm_bytes}"
        return CompileFailure("compile_error", line, line)
    return Compiled(
        chip=target.name,
        hlo_text=text,
        argument_bytes=memory.argument_size_in_bytes,
        output_bytes=memory.output_size_in_bytes,
        temp_bytes=memory.temp_size_in_bytes,
        vmem_bytes=max(used, default=None),
        seconds=seconds,
        executable=executable,
    )

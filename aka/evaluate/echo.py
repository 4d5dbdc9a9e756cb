"""A tiny role that tries the machinery: it returns what it is given and misbehaves on request."""

from __future__ import annotations

import contextlib
import ctypes
import os
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from aka.evaluate import wire

Reply = tuple[dict[str, Any], list[bytes]]


def warm() -> None:
    """Nothing to import: a start of this role is the start of the machinery alone."""


def _echo(args: dict[str, Any], blobs: list[bytes]) -> Reply:
    return args, blobs


def _double(args: dict[str, Any], blobs: list[bytes]) -> Reply:
    specs, out = wire.pack([a + a for a in wire.unpack(args["arrays"], blobs)])
    return {"arrays": specs}, out


def _sleep(args: dict[str, Any], blobs: list[bytes]) -> Reply:
    time.sleep(args["seconds"])
    return {"pid": os.getpid()}, []


def _spin(args: dict[str, Any], blobs: list[bytes]) -> Reply:
    end = time.monotonic() + args["seconds"]
    while time.monotonic() < end:
        pass
    return {}, []


def _allocate(args: dict[str, Any], blobs: list[bytes]) -> Reply:
    kept = []
    for _ in range(args["mib"]):
        kept.append(b"\x01" * (1 << 20))
    time.sleep(args.get("seconds", 0))
    return {"mib": len(kept)}, []


def _reserve(args: dict[str, Any], blobs: list[bytes]) -> Reply:
    return {"bytes": len(bytearray(args["gib"] << 30))}, []


def _fork(args: dict[str, Any], blobs: list[bytes]) -> Reply:
    """Start `count` sleepers, each detached in its own session and orphaned; says how many it could.

    It waits for the processes between, because /proc lists children unreliably while siblings come and go.
    """
    started = 0
    for _ in range(args["count"]):
        with contextlib.suppress(OSError):
            if (between := os.fork()) == 0:
                os._exit(_orphan())
            started += os.waitpid(between, 0)[1] == 0
    if args.get("hang"):
        time.sleep(600)
    return {"started": started}, []


def _orphan() -> int:
    try:
        os.setsid()
        if os.fork() == 0:
            time.sleep(600)
        return 0
    except OSError:
        return 1


def _print(args: dict[str, Any], blobs: list[bytes]) -> Reply:
    for _ in range(args["lines"]):
        print(args.get("text", "x" * 99))
        print("to stderr", file=sys.stderr)
    return {}, []


def _exit(args: dict[str, Any], blobs: list[bytes]) -> Reply:
    if "signal" in args:
        os.kill(os.getpid(), args["signal"])
    if args.get("hard"):
        os._exit(args["code"])
    sys.exit(args["code"])


def _raise(args: dict[str, Any], blobs: list[bytes]) -> Reply:
    raise ValueError(args["message"])


def _write_file(args: dict[str, Any], blobs: list[bytes]) -> Reply:
    with open(args["path"], "wb") as f:
        for _ in range(args["mib"]):
            f.write(bytes(1 << 20))
    return {"bytes": os.path.getsize(args["path"])}, []


def _read_path(args: dict[str, Any], blobs: list[bytes]) -> Reply:
    path = Path(args["path"])
    return {"names": sorted(os.listdir(path))} if path.is_dir() else {"text": path.read_text()}, []


def _connect(args: dict[str, Any], blobs: list[bytes]) -> Reply:
    socket.create_connection((args["host"], args["port"]), timeout=2).close()
    return {}, []


def _environment(args: dict[str, Any], blobs: list[bytes]) -> Reply:
    """The environment of every process that can be seen from here, and who we are."""
    seen = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            seen[folder.name] = (folder / "environ").read_bytes().decode(errors="replace")
    status = Path("/proc/self/status").read_text()
    return {"own": dict(os.environ), "seen": seen, "uid": os.getuid(), "pid": os.getpid(), "status": status}, []


def _system_calls(args: dict[str, Any], blobs: list[bytes]) -> Reply:
    """What each of these calls, given by number with arguments, fails with; 0 where it does not."""
    libc = ctypes.CDLL(None, use_errno=True)
    failed = [ctypes.get_errno() if libc.syscall(*map(ctypes.c_long, call)) < 0 else 0 for call in args["calls"]]
    return {"errno": failed}, []


def _compile(args: dict[str, Any], blobs: list[bytes]) -> Reply:
    """A square bf16 product compiled ahead of time for a chip, its flops as XLA counts them, and one on the CPU."""
    import jax
    import jax.numpy as jnp
    from jax.experimental import topologies
    from jax.sharding import SingleDeviceSharding

    device: Any = topologies.get_topology_desc(args["topology"], platform="tpu").devices[0]
    struct: Any = jax.ShapeDtypeStruct
    x = struct((args["n"], args["n"]), jnp.bfloat16, sharding=SingleDeviceSharding(device))
    compiled = jax.jit(lambda a, b: a @ b).trace(x, x).lower(lowering_platforms=("tpu",)).compile()
    ones = jnp.ones((args["n"], args["n"]))
    on_cpu = float(jax.jit(lambda a: a @ a)(ones)[0, 0])
    return {"device": device.device_kind, "flops": compiled.cost_analysis()["flops"], "on_cpu": on_cpu}, []


def _forge(args: dict[str, Any], blobs: list[bytes]) -> Reply:
    """Write raw bytes to every pipe that could carry replies."""
    for fd in range(3, 512):
        with contextlib.suppress(OSError):
            os.write(fd, blobs[0])
    return {}, []


OPS: dict[str, Callable[[dict[str, Any], list[bytes]], Reply]] = {
    "echo": _echo,
    "double": _double,
    "sleep": _sleep,
    "spin": _spin,
    "allocate": _allocate,
    "reserve": _reserve,
    "fork": _fork,
    "print": _print,
    "exit": _exit,
    "raise": _raise,
    "write_file": _write_file,
    "read_path": _read_path,
    "connect": _connect,
    "environment": _environment,
    "system_calls": _system_calls,
    "compile": _compile,
    "forge": _forge,
}

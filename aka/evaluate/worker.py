"""The child's entry: `python -m aka.evaluate.worker --role ROLE` imports one module, warms it and serves its ops.

A role's module has `warm() -> None` and `OPS: dict[str, Callable[[dict, list[bytes]], tuple[dict, list[bytes]]]]`.
Requests come on stdin and replies leave on stdout, both moved out of the way before anything else runs, so that a
`print` ends in the log. The nonce keeps stray writers apart from answers; it is no secret from code in this process.
"""

from __future__ import annotations

import argparse
import fcntl
import importlib
import json
import os
import resource
import secrets
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from aka.errors import SandboxError
from aka.evaluate import guard, wire

Op = Callable[[dict[str, Any], list[bytes]], tuple[dict[str, Any], list[bytes]]]

ROLES = {
    "planner": "aka.evaluate.planner",
    "exporter": "aka.evaluate.exporter",
    "runner": "aka.evaluate.runner",
    "meter": "aka.targets.meter",
    "baseline": "aka.targets.meter",
    "floor": "aka.targets.meter",
    "echo": "aka.evaluate.echo",
}
_MESSAGE_CHARS = 16_000
_TRACE_CHARS = 4_000


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="aka.evaluate.worker")
    parser.add_argument("--role", required=True, choices=sorted(ROLES))
    parser.add_argument("--rlimits", default="{}", help="JSON: resource name to value")
    parser.add_argument("--cpu-s", type=int, default=0, help="processor seconds an op may use; 0: no cap")
    parser.add_argument(
        "--guard", metavar="FOLDER", help="outlive the worker; end what it leaves behind and remove FOLDER"
    )
    parser.add_argument("--landlock", metavar="WALL", help="JSON: a Wall to go behind before the role is imported")
    args = parser.parse_args(argv)
    if args.guard:
        guard.split(args.guard)
    requests, replies = _private_pipes()
    _confine(json.loads(args.rlimits))
    if args.landlock:
        from aka.evaluate import landlock  # the other rungs start without it

        landlock.enter(landlock.Wall(**json.loads(args.landlock)))
    module = importlib.import_module(ROLES[args.role])
    module.warm()
    nonce = secrets.token_hex(16)
    wire.send(replies, {"ready": True, "nonce": nonce, "role": args.role})
    _serve(requests, replies, nonce, module.OPS, args.cpu_s)


def _private_pipes() -> tuple[int, int]:
    """Move the protocol to high descriptors that no exec inherits; 0 becomes /dev/null, 1 joins 2, the log."""
    requests, replies = (fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 200) for fd in (0, 1))
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.dup2(2, 1)
    os.close(null)
    return requests, replies


def _confine(limits: Mapping[str, int]) -> None:
    for name, value in limits.items():
        which = getattr(resource, name)
        hard = resource.getrlimit(which)[1]
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(which, (value, value))
    guard.volunteer_for_oom()


def _serve(requests: int, replies: int, nonce: str, ops: Mapping[str, Op], cpu_s: int) -> None:
    while True:
        try:
            request, blobs = wire.recv(requests, None)
        except EOFError:
            return  # the parent is gone, or done with us
        _renew_cpu(cpu_s)
        pieces = _answer(ops, request, blobs, nonce)
        del blobs
        wire.write(replies, pieces)


def _answer(ops: Mapping[str, Op], request: dict[str, Any], blobs: list[bytes], nonce: str) -> list[bytes]:
    reply = {"id": request["id"], "nonce": nonce}
    try:
        result, out = ops[request["op"]](request["args"], blobs)
        return wire.encode(reply | {"ok": True, "result": result}, out)
    except Exception as e:  # the only one in aka: what an op raises is an answer, not a death
        return wire.encode(reply | {"ok": False, "error": _describe(e)})


def _describe(e: Exception) -> dict[str, str]:
    """Class name, text and the end of the trace. An exception from a candidate may fail even to print itself."""
    kind = type(e).__name__
    shown = traceback.TracebackException.from_exception(e)
    _drop_jax_notes(shown)
    message = "".join(shown.format_exception_only()).strip()
    message = message.partition(f"{kind}: ")[2] or message
    trace = "".join(shown.format())
    return {
        "kind": _clean(kind)[:200],
        "message": _clean(message)[:_MESSAGE_CHARS],
        "trace": _clean(trace)[-_TRACE_CHARS:],
    }


def _drop_jax_notes(shown: traceback.TracebackException) -> None:
    """JAX adds to each exception, and to those that it came from, a note on the frames that it has left out."""
    link: traceback.TracebackException | None = shown
    while link is not None:
        if type(link.__notes__) is list:  # and nothing that a candidate made of it
            link.__notes__ = [n for n in link.__notes__ if type(n) is not str or "JAX_TRACEBACK_FILTERING" not in n]
        link = link.__cause__ or link.__context__


def _clean(text: str) -> str:
    return text.encode(errors="replace").decode()


def _renew_cpu(cpu_s: int) -> None:
    """Allow `cpu_s` more from now. Only the soft limit moves, so that a reused worker can be given more each time."""
    if cpu_s:
        used = resource.getrusage(resource.RUSAGE_SELF)
        soft = int(used.ru_utime + used.ru_stime) + 1 + cpu_s
        hard = resource.getrlimit(resource.RLIMIT_CPU)[1]
        resource.setrlimit(resource.RLIMIT_CPU, (soft if hard == resource.RLIM_INFINITY else min(soft, hard), hard))


if __name__ == "__main__":
    try:
        main()
    except SandboxError as error:
        sys.exit(f"aka worker: {error}")

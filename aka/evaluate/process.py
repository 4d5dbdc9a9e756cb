"""A worker seen from its parent: one process tree, one request at a time, and a death that leaves nothing behind."""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from aka.errors import WireError, WorkerDied, WorkerStartFailed, WorkerTimeout
from aka.evaluate import ending, proctree, wire
from aka.evaluate.ending import WorkerEnded, WorkerError

Frame = tuple[dict[str, Any], list[bytes]]
_TICK_S = 0.1
_LOG_KEPT_BYTES = 1 << 16


class Worker:
    """Owns `process` (stdin: requests, stdout: replies, stderr: log; all pipes) and, if given, its private folder."""

    def __init__(
        self,
        role: str,
        process: subprocess.Popen[bytes],
        *,
        memory_bytes: int,
        wall_s: float,
        log_bytes: int,
        folder: Path | None = None,
    ) -> None:
        assert process.stdin and process.stdout and process.stderr
        self.role = role
        self._process, self._folder = process, folder
        self._memory_bytes, self._wall_s, self._log_bytes = memory_bytes, wall_s, log_bytes
        self._in, self._out, self._err = (p.fileno() for p in (process.stdin, process.stdout, process.stderr))
        for fd in (self._in, self._out, self._err):
            os.set_blocking(fd, False)
            _widen(fd)
        self._lock = threading.RLock()
        self._nonce = ""
        self._calls = 0
        self._killed = self._closed = False
        self._log = bytearray()
        self._log_seen = 0
        self._log_open = True

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def alive(self) -> bool:
        return not self._killed and self._process.poll() is None

    def ready(self, *, timeout_s: float = 120.0) -> Worker:
        """Wait until the role's module is warm. WorkerStartFailed, and nothing left of it, if it never gets there."""
        with self._lock:
            if self._nonce:
                return self
            try:
                hello, _ = self._guarded([], timeout_s, wire.HEADER_BYTES)
            except (WorkerDied, WorkerTimeout, WireError) as e:
                raise WorkerStartFailed(f"the {self.role} worker did not start: {e}\n{self._text()[-2000:]}") from e
            self._nonce = str(hello.get("nonce", ""))
            if hello.get("ready") is not True or not self._nonce:
                self.kill()
                raise WorkerStartFailed(f"the {self.role} worker greeted with something else")
            return self

    def call(
        self,
        op: str,
        args: dict[str, Any],
        blobs: Sequence[bytes] = (),
        *,
        timeout_s: float,
        reply_bytes: int = wire.TOTAL_BYTES,
    ) -> Frame:
        """Run one op and return its result and blobs; a reply over `reply_bytes` is a WireError.

        Raises WorkerError if the op raised (the worker lives on). After WorkerEnded, WorkerTimeout or WireError the
        whole tree is dead. `timeout_s` is cut to the role's `wall_s` and starts when the worker is free.
        """
        with self._lock:
            self.ready()
            self._calls += 1
            request = wire.encode({"id": self._calls, "op": op, "args": args}, blobs)
            body, out = self._guarded(request, timeout_s, reply_bytes)
            if body.get("id") != self._calls or body.get("nonce") != self._nonce:
                self.kill()
                raise WireError(f"the {self.role} worker sent a reply that nobody asked for")
            return self._result(body), out

    def kill(self) -> None:
        """End the whole tree now; safe to call twice and from another thread than the one in `call`."""
        self._killed = True
        ending.end(self._process)
        with self._lock:
            if not self._closed:
                self._drain()
                self._closed = True
                for pipe in (self._process.stdin, self._process.stdout, self._process.stderr):
                    with contextlib.suppress(OSError):
                        pipe.close()  # type: ignore[union-attr]
                if self._folder:
                    shutil.rmtree(self._folder, ignore_errors=True)

    def _result(self, body: dict[str, Any]) -> dict[str, Any]:
        result, error = body.get("result"), body.get("error")
        if body.get("ok") is True and isinstance(result, dict):
            return result
        if body.get("ok") is False and isinstance(error, dict):
            raise WorkerError(*(str(error.get(key, "")) for key in ("kind", "message", "trace")))
        self.kill()
        raise WireError(f"the {self.role} worker sent a reply of the wrong form")

    def _guarded(self, request: list[bytes], timeout_s: float, reply_bytes: int) -> Frame:
        """Exchange, and kill the tree on any way out but a whole frame (Ctrl-C included)."""
        whole = False
        try:
            frame = self._exchange(request, time.monotonic() + min(timeout_s, self._wall_s), reply_bytes)
            whole = True
            return frame
        finally:
            if not whole:
                self.kill()

    def _exchange(self, request: list[bytes], deadline: float, reply_bytes: int) -> Frame:
        if not self.alive:
            raise self._ended()
        if request and _readable(self._out):
            raise WireError("the worker spoke out of turn") if os.read(self._out, 1) else self._ended()
        self._log_seen = 0
        pending = [memoryview(piece) for piece in request]
        decoder = wire.Decoder(reply_bytes)
        next_tick = time.monotonic() + _TICK_S
        while True:
            now = time.monotonic()
            if now >= deadline:
                raise WorkerTimeout(f"the {self.role} worker did not answer in time", log=self._text())
            if now >= next_tick:
                self._check_memory()
                next_tick = now + _TICK_S
            ended = self._process.poll() is not None  # asked before the pipe is read: a last reply still counts
            events = dict(
                self._poller(bool(pending)).poll(0 if ended else max(0.0, min(next_tick, deadline) - now) * 1000)
            )
            if self._err in events:
                self._drain()
            if self._in in events:
                pending = self._write(pending)
            if self._out in events:
                frame = self._read(decoder)
                if frame is not None:
                    return frame
            elif ended:
                raise self._ended()

    def _poller(self, writing: bool) -> select.poll:
        poller = select.poll()
        poller.register(self._out, select.POLLIN)
        if self._log_open:
            poller.register(self._err, select.POLLIN)
        if writing:
            poller.register(self._in, select.POLLOUT)
        return poller

    def _read(self, decoder: wire.Decoder) -> Frame | None:
        try:
            return decoder.read(self._out)
        except BlockingIOError:
            return None
        except EOFError:
            raise self._ended() from None

    def _write(self, pending: list[memoryview]) -> list[memoryview]:
        try:
            done = os.write(self._in, pending[0][: 1 << 20])
        except BlockingIOError:
            return pending
        except BrokenPipeError:
            return []  # it closed its end: the reply pipe tells how it died
        head = pending[0][done:]
        return [head, *pending[1:]] if head else pending[1:]

    def _drain(self) -> None:
        """Read what the log pipe holds; over the cap the worker is done for."""
        while not self._closed:  # a closed descriptor's number may by now be another worker's
            try:
                text = os.read(self._err, 1 << 16)
            except (BlockingIOError, OSError):
                return
            if not text:
                self._log_open = False
                return
            self._log_seen += len(text)
            self._log = (self._log + text)[-_LOG_KEPT_BYTES:]
            if self._log_seen > self._log_bytes and not self._killed:
                message = f"the {self.role} worker printed more than {self._log_bytes} bytes"
                raise WorkerEnded(message, reason="log_limit", log=self._text())

    def _check_memory(self) -> None:
        used = proctree.rss_bytes(self._process.pid)
        if used > self._memory_bytes:
            message = f"the {self.role} worker used {used >> 20} MiB of the {self._memory_bytes >> 20} MiB it may use"
            raise WorkerEnded(message, reason="resource_limit", log=self._text())

    def _ended(self) -> WorkerEnded:
        """Its reply pipe is closed or its process gone: give it a moment to end, and say how it did."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(2.0)
        with contextlib.suppress(WorkerEnded):
            self._drain()
        return ending.describe(self.role, self._process.poll(), self._text())

    def _text(self) -> str:
        return self._log.decode(errors="replace")


def _widen(fd: int) -> None:
    """Fewer turns for large arrays: 1 MiB is what Linux grants anyone by default, 64 KiB what a pipe starts with."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError):
            fcntl.fcntl(fd, fcntl.F_SETPIPE_SZ, 1 << 20)


def _readable(fd: int) -> bool:
    poller = select.poll()
    poller.register(fd, select.POLLIN)
    return bool(poller.poll(0))

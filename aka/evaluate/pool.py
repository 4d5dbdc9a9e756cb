"""Keeps warm workers at hand: a spare per role that has imported everything and run nothing, and a few of our own."""

from __future__ import annotations

import atexit
import contextlib
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import Future

from aka.errors import WorkerStartFailed
from aka.evaluate import sandbox
from aka.evaluate.ending import Reason, WorkerEnded, WorkerError
from aka.evaluate.process import Worker
from aka.evaluate.sandbox import Limits

__all__ = ["Limits", "Pool", "Reason", "Worker", "WorkerEnded", "WorkerError"]


class Pool:
    """Thread-safe. A role without an entry in `limits` or `env` gets the default limits and no extra environment."""

    def __init__(
        self, limits: Mapping[str, Limits] | None = None, env: Mapping[str, Mapping[str, str]] | None = None
    ) -> None:
        self._limits, self._env = dict(limits or {}), dict(env or {})
        self._lock = threading.Lock()
        self._keep_locks: dict[str, threading.Lock] = {}
        self._spares: dict[str, Future[Worker]] = {}
        self._kept: dict[str, Worker] = {}
        self._out: list[Worker] = []
        self._open = True
        atexit.register(self.close)

    def prepare(self, *roles: str) -> None:
        """Start the spares of these roles in the background, so that the first `take` is quick."""
        with self._lock:
            for role in roles:
                if role not in self._spares:
                    self._spares[role] = self._start(role)

    def take(self, role: str) -> Worker:
        """A worker that has imported and run nothing; the next spare starts meanwhile. The caller kills it.

        Raises WorkerStartFailed if two in a row do not start.
        """
        for attempt in (0, 1):
            with self._lock:
                spare = self._spares.pop(role, None) or self._start(role)
                self._spares[role] = self._start(role)
            worker = spare.result()
            self._remember(worker)
            try:
                return worker.ready()
            except WorkerStartFailed:
                if attempt:
                    raise
        raise AssertionError("unreachable")

    @contextlib.contextmanager
    def borrow(self, role: str) -> Iterator[Worker]:
        """A fresh worker for one use: its tree is dead when the block ends."""
        worker = self.take(role)
        try:
            yield worker
        finally:
            worker.kill()

    def keep(self, role: str) -> Worker:
        """The one worker of a role that runs only our own code; a new one when the last has died."""
        with self._lock:
            lock = self._keep_locks.setdefault(role, threading.Lock())
        with lock:
            worker = self._kept.get(role)
            if worker is None or not worker.alive:
                with self._lock:
                    spare = self._spares.pop(role, None) or self._start(role)
                worker = self._kept[role] = spare.result()
                self._remember(worker)
            return worker.ready()

    def renew(self, role: str) -> None:
        """Kill the worker that is kept for a role, whoever waits for it, and start the next one in the background."""
        if (worker := self._kept.get(role)) is not None:
            worker.kill()
        self.prepare(role)

    def close(self) -> None:
        """Kill every worker that came from this pool, handed out or not. Safe to call twice."""
        with self._lock:
            self._open = False
            spares, self._spares = list(self._spares.values()), {}
            out, self._out = self._out, []
        for worker in out:
            worker.kill()
        for spare in spares:
            if not spare.cancel() and spare.exception() is None:
                spare.result().kill()
        atexit.unregister(self.close)

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _start(self, role: str) -> Future[Worker]:
        if not self._open:
            raise WorkerStartFailed("the pool is closed")
        return sandbox.start(role, self._limits.get(role, Limits()), self._env.get(role, {}))

    def _remember(self, worker: Worker) -> None:
        with self._lock:
            self._out = [w for w in self._out if w.alive] + [worker]
            if self._open:
                return
        worker.kill()
        raise WorkerStartFailed("the pool is closed")

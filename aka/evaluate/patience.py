"""How long a judgement may take, and work that goes on beside another part of it."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from types import TracebackType
from typing import Generic, TypeVar

T = TypeVar("T")
LINGER_S = 3.0
"""Work that nobody waits for any more may end by itself for so long, before it is ended."""


class Expired(Exception):
    """The judgement's time is over; the text says how much it was."""


class Unwanted(Exception):
    """The answer is known from elsewhere: what is left of this part need not be done."""


def load_per_core() -> float:
    """Processes that want to run (over the last minute) for each core, at least 1; 1 where the system does not say."""
    try:
        return max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))
    except OSError:
        return 1.0


@dataclass
class Patience:
    """The time of one judgement: `limit_s` from now on, or as long as it takes. `stop` may be called by any thread.

    Where more wants to run than there are cores, limit and caps grow as everything slows down: `crowding` is how much.
    """

    limit_s: float | None = None
    crowding: Callable[[], float] = load_per_core
    _begun: float = field(default_factory=time.monotonic)
    _stopped: threading.Event = field(default_factory=threading.Event)

    def cut(self, cap_s: float) -> float:
        """`cap_s`, or the seconds left if they are fewer. Raises Expired if none are left, Unwanted after `stop`."""
        if self._stopped.is_set():
            raise Unwanted
        crowding = self.crowding()
        if self.limit_s is None:
            return cap_s * crowding
        left = self._begun + self.limit_s * crowding - time.monotonic()
        if left <= 0:
            raise Expired(f"not judged within {self.limit_s:.0f} s")
        return min(cap_s * crowding, left)

    @contextlib.contextmanager
    def spared(self) -> Iterator[None]:
        """What is done in the block is not held against the candidate: it is made for all of them."""
        begun = time.monotonic()
        yield
        self._begun += time.monotonic() - begun

    def stop(self) -> None:
        self._stopped.set()


class Beside(Generic[T]):
    """`work` in a thread of its own for as long as the block lasts. Leaving the block before it has ended calls
    `end`, which must make it end (by killing the process that it waits for): no thread is left behind."""

    def __init__(self, work: Callable[[], T], end: Callable[[], None]) -> None:
        self._work, self._end = work, end
        self._thread = ThreadPoolExecutor(1, "aka-beside")

    def result(self) -> T:
        """What `work` returned, when it has; raises what it raised."""
        return self._future.result()

    def __enter__(self) -> Beside[T]:
        self._future = self._thread.submit(self._work)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        ended = wait([self._future], 0.0 if kind else LINGER_S).done
        while not ended:
            self._end()
            ended = wait([self._future], LINGER_S).done
        self._thread.shutdown()

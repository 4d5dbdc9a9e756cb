"""Vectors by the hash of the text they were made from: what has been embedded once is never embedded again."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable

from aka.kb.embed import Embedder
from aka.kb.store import Vector

Progress = Callable[[str, int, int], None]


def quiet(stage: str, done: int, total: int) -> None:
    """A progress callback that shows nothing."""


class VectorCache:
    """Wraps an embedder that is only made when a text is new. `total` is how many texts the build has in all."""

    def __init__(
        self, known: Iterable[Vector], make_embedder: Callable[[], Embedder], progress: Progress, total: int
    ) -> None:
        self._known = {vector.sha256: vector for vector in known}
        self._used: dict[str, Vector] = {}
        self._make = make_embedder
        self._embedder: Embedder | None = None
        self._progress = progress
        self._total = total
        self.embedded = 0

    def embed(self, texts: list[str]) -> list[list[float]]:
        """Vectors in the order of the texts. Raises EmbedderUnavailable if a new text has no engine."""
        import numpy as np

        keys = [hashlib.sha256(text.encode()).hexdigest() for text in texts]
        new = {key: text for key, text in zip(keys, texts, strict=True) if key not in self._known}
        if new:
            self._embed(new)
        self._used |= {key: self._known[key] for key in keys}
        self._progress("embed", len(self._used), self._total)
        return [np.frombuffer(self._known[key].data, "<f4").tolist() for key in keys]

    def used(self) -> list[Vector]:
        """The vectors that this build asked for, old and new."""
        return list(self._used.values())

    def engines(self) -> dict[str, str]:
        """Name of each engine behind those vectors, to the sha256 of its weights."""
        return {vector.engine: vector.weights_sha256 for vector in self._used.values()}

    def _embed(self, new: dict[str, str]) -> None:
        self._embedder = self._embedder or self._make()
        rows = self._embedder.embed(list(new.values()))
        for key, row in zip(new, rows, strict=True):
            self._known[key] = Vector(key, self._embedder.engine, self._embedder.sha256, row.astype("<f4").tobytes())
        self.embedded += len(new)

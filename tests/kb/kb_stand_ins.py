"""An engine without a model."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np

from aka.kb.embed import DIMENSIONS


class HashEmbedder:
    """A stand-in engine: the vector of a text follows from its hash. Counts the texts it is given."""

    engine = "hash"
    sha256 = "0" * 64

    def __init__(self) -> None:
        self.texts = 0

    def embed(self, texts: Sequence[str]) -> np.ndarray:
        self.texts += len(texts)
        rows = [np.random.default_rng(_seed(text)).normal(size=DIMENSIONS) for text in texts]
        return np.array([row / np.linalg.norm(row) for row in rows], np.float32)


def _seed(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8])

"""The two engines run one model, and the weights are the ones we know."""

from __future__ import annotations

import hashlib
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from aka.kb.embed import (
    DIMENSIONS,
    ONNX_SHA256,
    VOCABULARY,
    EmbedderUnavailable,
    OnnxEmbedder,
    SentenceTransformerEmbedder,
    check_file,
)

TEXTS = [
    "scoped vmem oom",
    "RESOURCE_EXHAUSTED: Ran out of memory in memory space vmem. Used 24.02M of 16.00M vmem.",
    "Make the blocks smaller, or raise `vmem_limit_bytes` in `pltpu.CompilerParams`.",
    "def kernel(x_ref, o_ref):\n    o_ref[...] = x_ref[...] * 2.0",
    "Softmax über Zeilen: café, 行列, naïve",
    "word " * 600,
]


@pytest.mark.skipif(find_spec("sentence_transformers") is None, reason="sentence-transformers is not installed")
def test_the_twin_agrees_with_sentence_transformers() -> None:
    full = SentenceTransformerEmbedder().embed(TEXTS)
    twin = OnnxEmbedder().embed(TEXTS)
    assert full.shape == twin.shape == (len(TEXTS), DIMENSIONS)
    cosines = (full * twin).sum(1)
    assert cosines.min() >= 0.999, cosines


def test_a_batch_gives_what_single_texts_give() -> None:
    twin = OnnxEmbedder()
    together = twin.embed(TEXTS)
    alone = np.concatenate([twin.embed([text]) for text in TEXTS])
    assert (together * alone).sum(1).min() >= 0.999
    assert np.allclose(np.linalg.norm(together, axis=1), 1.0, atol=1e-5)
    assert twin.embed([]).shape == (0, DIMENSIONS)


def test_other_weights_are_refused(tmp_path: Path) -> None:
    model = tmp_path / "model.onnx"
    model.write_bytes(b"not the model")
    with pytest.raises(EmbedderUnavailable, match=f"expected {ONNX_SHA256[:12]}"):
        check_file(model, ONNX_SHA256)


def test_the_vocabulary_is_that_of_the_model() -> None:
    digest = hashlib.sha256(VOCABULARY.read_bytes()).hexdigest()
    assert digest == "07eced375cec144d27c900241f3e339478dec958f92fddbc551f295c992038a3"

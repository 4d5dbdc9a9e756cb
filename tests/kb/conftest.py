"""A small library of our own, and its index built once with the real ONNX model."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from aka.kb.builder import build_index
from aka.kb.embed import query_embedder
from aka.kb.places import Places

DATA = Path(__file__).parent / "data"


@pytest.fixture
def library(tmp_path: Path) -> Places:
    """A copy of the sources that a test may change; no index yet."""
    for name in ("knowledge", "reference_kernels"):
        shutil.copytree(DATA / name, tmp_path / name)
    return Places(tmp_path / "knowledge", tmp_path / "reference_kernels", tmp_path / "index")


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Places:
    """The sources with an index made by the ONNX engine; tests only read it."""
    places = Places(DATA / "knowledge", DATA / "reference_kernels", tmp_path_factory.mktemp("built") / "index")
    build_index(places, embedder=query_embedder)
    return places

"""The library as a llama-index retriever, for code that is written against llama-index."""

from __future__ import annotations

from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.schema import NodeWithScore, QueryBundle, TextNode

from aka.protocols import Retriever
from aka.types import Passage


class LlamaRetriever(BaseRetriever):
    """Wraps any `Retriever`; nodes keep our passage ids, scores and metadata."""

    def __init__(self, retriever: Retriever, *, k: int = 5, kind: str | None = None, chip: str | None = None) -> None:
        super().__init__()
        self._retriever = retriever
        self._k = k
        self._kind = kind
        self._chip = chip

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        found = self._retriever.search(query_bundle.query_str, k=self._k, kind=self._kind, chip=self._chip)
        return [NodeWithScore(node=_node(passage), score=passage.score) for passage in found]


def _node(passage: Passage) -> TextNode:
    about = {"document": passage.doc_id, "kind": passage.kind, "title": passage.title, "heading": passage.heading}
    return TextNode(id_=passage.passage_id, text=passage.text, metadata=about | {"path": passage.path})

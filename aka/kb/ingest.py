"""Ingestion through llama-index: documents to nodes (own parsers), nodes to vectors (own cache), vectors to Chroma.

Importing this module takes about 2 s (llama-index and chromadb); only a build does it.
"""

from __future__ import annotations

import hashlib
from abc import abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from llama_index.core.embeddings import BaseEmbedding
from llama_index.core.ingestion import IngestionPipeline
from llama_index.core.node_parser import NodeParser
from llama_index.core.schema import BaseNode, MetadataMode, NodeRelationship, TextNode
from llama_index.core.schema import Document as LlamaDocument
from llama_index.vector_stores.chroma import ChromaVectorStore
from pydantic import PrivateAttr

from aka.kb.cache import VectorCache
from aka.kb.chroma import create_collection
from aka.kb.embed import MODEL
from aka.kb.sections import Section, markdown_sections, python_sections
from aka.kb.store import Stored
from aka.kb.values import CHIPS, Document, Kind

# Only these two go in front of the text that is embedded; the rest of the metadata is for filters.
EMBEDDED = ("title", "heading")


class SectionParser(NodeParser):
    """Cuts by `_sections`. Node ids are the hash of document id, heading and text: the same library, the same ids."""

    include_metadata: bool = False

    @abstractmethod
    def _sections(self, text: str, summary: str) -> list[Section]: ...

    def _parse_nodes(self, nodes: Sequence[BaseNode], show_progress: bool = False, **kwargs: Any) -> list[BaseNode]:
        parsed: dict[str, BaseNode] = {}
        for node in nodes:
            for section in self._sections(node.get_content(MetadataMode.NONE), node.metadata["summary"]):
                made = _node(node, section)
                parsed.setdefault(made.node_id, made)
        return list(parsed.values())


class MarkdownByHeading(SectionParser):
    def _sections(self, text: str, summary: str) -> list[Section]:
        return markdown_sections(text, summary)


class PythonByDefinition(SectionParser):
    def _sections(self, text: str, summary: str) -> list[Section]:
        return python_sections(text, summary)


class CachedEmbedding(BaseEmbedding):
    """llama-index's view of a VectorCache."""

    _cache: VectorCache = PrivateAttr()

    def __init__(self, cache: VectorCache, **kwargs: Any) -> None:
        super().__init__(model_name=MODEL, embed_batch_size=32, **kwargs)
        self._cache = cache

    def _get_text_embeddings(self, texts: list[str]) -> list[list[float]]:
        return self._cache.embed(texts)

    def _get_text_embedding(self, text: str) -> list[float]:
        return self._cache.embed([text])[0]

    def _get_query_embedding(self, query: str) -> list[float]:
        return self._cache.embed([query])[0]

    async def _aget_query_embedding(self, query: str) -> list[float]:
        return self._get_query_embedding(query)


PARSERS: dict[Kind, Callable[[], SectionParser]] = {"note": MarkdownByHeading, "kernel": PythonByDefinition}


def cut(documents: Sequence[Document]) -> list[BaseNode]:
    """Documents to nodes, in document order, without vectors."""
    nodes: list[BaseNode] = []
    for kind, parser in PARSERS.items():
        chosen = [_llama(document) for document in documents if document.kind == kind]
        pipeline = IngestionPipeline(transformations=[parser()], disable_cache=True)
        nodes += pipeline.run(documents=chosen) if chosen else []
    return nodes


def embed_into(folder: Path, nodes: Sequence[BaseNode], cache: VectorCache) -> None:
    """Gives each node its vector and writes all of them to a new Chroma in `folder`, closed when this returns."""
    with create_collection(folder) as collection:
        store = ChromaVectorStore.from_collection(collection)
        pipeline = IngestionPipeline(
            transformations=[CachedEmbedding(cache)], vector_store=store, disable_cache=True
        )  # fmt: skip
        pipeline.run(nodes=nodes)


def stored(node: BaseNode) -> Stored:
    """A node as our own file keeps it."""
    text = node.get_content(MetadataMode.NONE)
    embedded = hashlib.sha256(node.get_content(MetadataMode.EMBED).encode()).hexdigest()
    return Stored(node.node_id, node.metadata["document"], node.metadata["heading"], text, embedded)


def _llama(document: Document) -> LlamaDocument:
    chips = {f"chip_{chip}": chip in document.chips for chip in CHIPS}
    metadata = {"document": document.id, "kind": document.kind, "title": document.title, "summary": document.summary}
    return LlamaDocument(id_=document.id, text=document.body, metadata=metadata | chips)


def _node(parent: BaseNode, section: Section) -> TextNode:
    metadata = {key: value for key, value in parent.metadata.items() if key != "summary"}
    metadata["heading"] = section.heading
    key = "\0".join((parent.node_id, section.heading, section.text))
    return TextNode(
        id_=hashlib.sha256(key.encode()).hexdigest()[:32],
        text=section.text,
        metadata=metadata,
        excluded_embed_metadata_keys=[key for key in metadata if key not in EMBEDDED],
        metadata_template="{value}",
        text_template="{metadata_str}\n{content}",
        relationships={NodeRelationship.SOURCE: parent.as_related_node_info()},
    )

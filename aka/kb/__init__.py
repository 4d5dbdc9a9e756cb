"""The knowledge base: notes and reference kernels as documents, an index of their passages, and retrieval.

places -> sources -> documents -> sections -> ingest -> store + chroma -> builder -> retriever

The front doors are `build_index` (builder), `open_retriever` (opening) and `HybridRetriever` (retriever); nothing heavy
is imported before one of them is called.
"""

"""How long the knowledge base takes: a command as a new process, a query in one, builds, the freshness check.

Run `python benchmarks/kb.py` on a quiet machine; it prints one Markdown table. Builds go to a temporary folder.
"""

from __future__ import annotations

import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

from aka.kb.builder import build_index
from aka.kb.embed import OnnxEmbedder, SentenceTransformerEmbedder
from aka.kb.opening import refresh
from aka.kb.places import Places, find_places
from aka.kb.retriever import HybridRetriever
from aka.kb.sources import fingerprint, read_sources

QUERY = "scoped vmem oom"
QUERIES = (
    QUERY,
    "skip masked blocks in causal attention",
    "rsqrt mul reduce_sum",
    "block shape divisible by 8 and 128",
)
COMMAND = [sys.executable, "-c", "import sys; from aka.cli.main import main; sys.exit(main())", "kb", "search", QUERY]


def main() -> None:
    """Measure and print."""
    places = find_places()
    refresh(places, announce=lambda message: print(message, file=sys.stderr))
    rows = [("`aka kb search`, new process, warm page cache, median of 5", _cold_command())]
    rows += _queries(places)
    with tempfile.TemporaryDirectory() as folder:
        rows += _builds(replace(places, index=Path(folder) / "index"))
        rows.append(("freshness check of 300 documents, median of 5", _freshness(places, Path(folder) / "many")))
    print(f"{_machine()}; {_library(places)}\n\n| what | time |\n|---|---|")
    for what, seconds in rows:
        print(f"| {what} | {f'{seconds:.2f} s' if seconds >= 1 else f'{seconds * 1e3:.1f} ms'} |")


def _seconds(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def _cold_command() -> float:
    def run() -> None:
        subprocess.run(COMMAND, check=True, stdout=subprocess.DEVNULL)

    run()
    return statistics.median(_seconds(run) for _ in range(5))


def _queries(places: Places) -> list[tuple[str, float]]:
    retriever = HybridRetriever(places.index)
    retriever.search(QUERY)
    times = [_seconds(lambda query=query: retriever.search(query)) for _ in range(25) for query in QUERIES]
    cuts = statistics.quantiles(times, n=20)
    return [("query in process, p50 of 100", statistics.median(times)), ("query in process, p95 of 100", cuts[-1])]


def _builds(places: Places) -> list[tuple[str, float]]:
    rows = []
    for engine in (SentenceTransformerEmbedder, OnnxEmbedder):
        if engine is SentenceTransformerEmbedder and not find_spec("sentence_transformers"):
            continue
        seconds = _seconds(lambda engine=engine: build_index(places, force=True, embedder=engine))
        rows.append((f"build from nothing, {engine.engine}, imports included where first", seconds))
    rows.append(("build, nothing changed", _seconds(lambda: build_index(places))))
    rows.append(("build again from known vectors", _seconds(lambda: build_index(_without_one(places)))))
    return rows


def _without_one(places: Places) -> Places:
    """The library short of its notes, which must be built but has nothing to embed."""
    return replace(places, knowledge=None)


def _freshness(places: Places, folder: Path) -> float:
    folder.mkdir()
    texts = [source.data for source in read_sources(places) if source.kind == "note"]
    for number in range(300):
        (folder / f"{number}.md").write_bytes(texts[number % len(texts)])
    many = Places(folder, None, folder)
    return statistics.median(_seconds(lambda: fingerprint(read_sources(many))) for _ in range(5))


def _library(places: Places) -> str:
    sources = read_sources(places)
    return f"{len(sources)} documents of {sum(len(s.data) for s in sources) / len(sources) / 1e3:.1f} kB on average"


def _machine() -> str:
    models = [line.split(":")[1].strip() for line in _cpuinfo() if line.startswith("model name")]
    load = os.getloadavg()[0]
    name = models[0] if models else platform.machine()
    return f"{name}, {os.cpu_count()} cores, load {load:.1f}, Python {platform.python_version()}"


def _cpuinfo() -> list[str]:
    path = Path("/proc/cpuinfo")
    return path.read_text().splitlines() if path.exists() else []


if __name__ == "__main__":
    main()

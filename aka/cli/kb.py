"""`aka kb`: build the index of the library, search it, show a document. Answers go to stdout, the rest to stderr."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from aka.cli import console
from aka.types import Passage

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

    from aka.kb.places import Places

app = typer.Typer(
    no_args_is_help=True,
    help="The library: optimization notes and reference kernels.",
    epilog='Example:  aka kb search "scoped vmem oom"',
)

SNIPPET_CHARS = 200

Knowledge = Annotated[Path | None, typer.Option("--knowledge", help="Folder of notes, instead of the library's own.")]
Kernels = Annotated[Path | None, typer.Option("--kernels", help="Folder of kernels, instead of the library's own.")]
Index = Annotated[Path | None, typer.Option("--index", help="Folder of the index.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
NoBuild = Annotated[bool, typer.Option("--no-build", help="Use the index as it is, even if the sources changed.")]


@app.command()
def build(
    force: Annotated[bool, typer.Option("--force", help="Build from nothing and embed every passage again.")] = False,
    timeout: Annotated[float, typer.Option(min=0, help="Seconds to wait for another build.")] = 600.0,
    json: AsJson = False,
    knowledge: Knowledge = None,
    kernels: Kernels = None,
    index: Index = None,
) -> None:
    """Bring the index up to date with the notes and kernels. Only new text is embedded.

    Example: aka kb build --force
    """
    from aka.kb.builder import build_index

    with _Stages() as stages:
        report = build_index(_places(knowledge, kernels, index), force=force, progress=stages, timeout_s=timeout)
    if report.notice:
        console.note(f"aka: {report.notice}")
    if json:
        console.answer_json(asdict(report))
        return
    done = f"built ({report.reason}) in {report.seconds:.1f} s" if report.built else "up to date"
    by = f", embedded by {' and '.join(report.engines)}" if report.engines else ", no vectors"
    console.answer(
        f"{report.index}: {done}: {report.documents} documents, {report.passages} passages ({report.embedded} new){by}"
    )


@app.command()
def search(
    query: Annotated[str, typer.Argument(help="A question, an error message, a profile sign, an identifier.")],
    k: Annotated[int, typer.Option("-k", min=1, max=100, help="How many documents.")] = 5,
    kind: Annotated[str | None, typer.Option(help="note or kernel.")] = None,
    chip: Annotated[str | None, typer.Option(help="Only what holds on this chip.")] = None,
    json: AsJson = False,
    no_build: NoBuild = False,
    knowledge: Knowledge = None,
    kernels: Kernels = None,
    index: Index = None,
) -> None:
    """Look passages up, best first: one for each document. Exit code 1 if there is none.

    Example: aka kb search "scoped vmem oom" --kind note
    """
    from aka.kb.opening import open_retriever

    with _Stages() as stages:
        places = _places(knowledge, kernels, index)
        retriever = open_retriever(places, build=not no_build, announce=_announce, progress=stages)
    if retriever.notice:
        _announce(retriever.notice)
    found = retriever.search(query, k=k, kind=kind, chip=chip)
    if json:
        console.answer_json([_row(rank, passage) for rank, passage in enumerate(found, 1)])
    elif found:
        console.answer("\n\n".join(_lines(rank, passage) for rank, passage in enumerate(found, 1)))
    if not found:
        _announce("nothing found")
        raise typer.Exit(1)


@app.command()
def show(
    id: Annotated[str, typer.Argument(help="A document's id, as `aka kb search` prints it.")],
    json: AsJson = False,
    no_build: NoBuild = False,
    knowledge: Knowledge = None,
    kernels: Kernels = None,
    index: Index = None,
) -> None:
    """Print a whole document.

    Example: aka kb show softmax-row-blocks
    """
    from aka.kb.opening import open_store
    from aka.kb.store import find_document

    with _Stages() as stages:
        places = _places(knowledge, kernels, index)
        library = open_store(places, build=not no_build, announce=_announce, progress=stages)
    document = find_document(library, id)
    if not json:
        console.answer(document.source.rstrip("\n"))
        return
    about = {"id": document.id, "kind": document.kind, "title": document.title, "path": document.path}
    console.answer_json(about | {"front_matter": document.matter, "text": document.source})


def _places(knowledge: Path | None, kernels: Path | None, index: Path | None) -> Places:
    from aka.kb.places import find_places

    return find_places(knowledge=knowledge, kernels=kernels, index=index)


def _announce(message: str) -> None:
    console.note(f"aka: {message}")


def _snippet(passage: Passage) -> str:
    text = console.one_line(passage.text)
    return text if len(text) <= SNIPPET_CHARS else text[: SNIPPET_CHARS - 1].rsplit(" ", 1)[0] + "…"


def _row(rank: int, passage: Passage) -> dict[str, Any]:
    return {
        "rank": rank,
        "id": passage.doc_id,
        "kind": passage.kind,
        "title": passage.title,
        "heading": passage.heading,
        "score": round(passage.score, 4),
        "snippet": _snippet(passage),
        "path": passage.path,
        "text": passage.text,
        "cosine": passage.metadata["cosine"],
        "bm25": passage.metadata["bm25"],
    }


def _lines(rank: int, passage: Passage) -> str:
    heading = f" > {passage.heading}" if passage.heading else ""
    return (
        f"{rank}. {passage.doc_id}  [{passage.kind}, score {passage.score:.2f}]\n"
        f"   {console.one_line(passage.title + heading)}\n"
        f"   {_snippet(passage)}\n"
        f"   {passage.path}"
    )


class _Stages:
    """The progress callback of a build, on stderr from its first call on: bars on a terminal, else one line a stage."""

    def __init__(self) -> None:
        self._bars: Progress | None = None
        self._tasks: dict[str, TaskID] = {}
        self._stage = ""

    def __enter__(self) -> _Stages:
        return self

    def __exit__(self, *exc: object) -> None:
        if self._bars:
            self._bars.stop()

    def __call__(self, stage: str, done: int, total: int) -> None:
        if sys.stderr.isatty():
            self._draw(stage, done, total)
        elif stage != self._stage:
            console.note(f"aka: {stage}")
        self._stage = stage

    def _draw(self, stage: str, done: int, total: int) -> None:
        if self._bars is None:
            from rich.progress import Progress

            self._bars = Progress(console=console.err(), transient=True)
            self._bars.start()
        if stage not in self._tasks:
            self._tasks[stage] = self._bars.add_task(stage, total=total)
        self._bars.update(self._tasks[stage], completed=done, total=total)

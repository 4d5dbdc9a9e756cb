"""`aka optimize`: search for a faster kernel, from op.py to best.py."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any

import typer

from aka.cli.options import Unsafe
from aka.errors import UsageError
from aka.types import Evaluation, RunResult, Trial, Workload, encode

if TYPE_CHECKING:
    from aka.cli.compose import Bench
    from aka.cli.view import View
    from aka.config import Settings
    from aka.journal.jsonl import JsonlJournal
    from aka.kb.retriever import HybridRetriever
    from aka.search.loop import Search


def optimize(
    op: Annotated[
        Path | None, typer.Argument(help="Workload file: defines workload(*inputs), create_inputs().")
    ] = None,
    chip: Annotated[str | None, typer.Option(help="v4, v5e, v5p, v6e or tpu7x (default v5e).")] = None,
    proposer: Annotated[str | None, typer.Option(help="Who writes candidates: offline.")] = None,
    max_trials: Annotated[int | None, typer.Option(help="Trials in all, those before a resume included.")] = None,
    max_minutes: Annotated[float | None, typer.Option(help="Minutes of work in all.")] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of every choice of the search.")] = None,
    out: Annotated[Path | None, typer.Option(help="Folder of the run (default runs/<id>).")] = None,
    dropout: Annotated[str | None, typer.Option(help="On a stall: off, mask, fresh or both.")] = None,
    resume: Annotated[str | None, typer.Option(help="Go on with a run: its id, a prefix, a path, or 'last'.")] = None,
    unsafe: Unsafe = False,
    json_: Annotated[bool, typer.Option("--json", help="Print the result as one JSON object.")] = False,
) -> None:
    """Search for a Pallas kernel that computes the op and is faster than XLA's version of it.

    Without a TPU the times are estimated by the TPU compiler itself, and marked so. Everything is journaled in
    runs/<id>/: Ctrl-C loses nothing, and --resume goes on. Exit code 0: improved; 1: no improvement found.

    Example: aka optimize examples/softmax.py --chip v6e --max-minutes 5
    """
    from aka.cli import console
    from aka.report import result as reports

    flags = {
        "chip": chip, "proposer": proposer, "max_trials": max_trials, "max_minutes": max_minutes, "seed": seed,
        "dropout": dropout,
    }  # fmt: skip
    if (op is None) == (resume is None):
        raise UsageError("give a workload file, or --resume RUN (not both); see aka optimize --help")
    if resume and out:
        raise UsageError("--out is for a new run: a run that is resumed stays in its folder")
    result = _resume(resume, flags, unsafe, json_) if resume else _start(op, out, flags, unsafe, json_)  # type: ignore[arg-type]
    if json_:
        console.answer_json(reports.result_json(result))
    else:
        console.answer(_sentence(result))
    raise typer.Exit(0 if result.status == "improved" else 1)


def _start(op: Path, out: Path | None, flags: dict[str, Any], unsafe: bool, json_: bool) -> RunResult:
    from aka.cli import compose
    from aka.config import load_settings
    from aka.evaluate import sandbox
    from aka.journal.jsonl import JsonlJournal
    from aka.journal.runs import new_run_id
    from aka.workload.read import read_workload

    settings = load_settings(flags)
    source = read_workload(op)
    run = (out.resolve().name if out else "") or new_run_id()
    with compose.bench(settings.chip, settings.sandbox, unsafe=unsafe) as bench:
        workload = compose.admitted(bench, source)
        with JsonlJournal.create(out or Path(settings.out) / run, run) as journal:
            begun = {
                "workload": encode(workload), "chip": settings.chip, "seed": settings.seed,
                "settings": settings.model_dump(), "versions": compose.versions(), "sandbox": sandbox.probe().name,
                "op_path": str(op),
            }  # fmt: skip
            journal.append("run_started", begun)
            return _run(bench, workload, journal, settings, json_)


def _resume(text: str, flags: dict[str, Any], unsafe: bool, json_: bool) -> RunResult:
    from aka.cli import compose, console
    from aka.config import load_settings
    from aka.journal.jsonl import JsonlJournal
    from aka.journal.replay import fold
    from aka.journal.runs import find_run

    with JsonlJournal.resume(find_run(text, Path(load_settings(flags).out))) as journal:
        if journal.message:
            console.note(journal.message)
        state = fold(journal.events(), journal.blobs)
        settings = load_settings({**state.settings, **{k: v for k, v in flags.items() if v is not None}})
        _same(state.versions, compose.versions(), state.chip, settings.chip)
        if state.finished is not None and not any(v is not None for v in flags.values()):
            console.note("this run had finished; give it a larger --max-trials or --max-minutes to go on")
            return state.finished
        with compose.bench(settings.chip, settings.sandbox, unsafe=unsafe) as bench:
            return _run(bench, state.workload, journal, settings, json_, elapsed_s=state.elapsed_s, resumed=True)


def _same(before: dict[str, str], now: dict[str, str], chip_before: str, chip: str) -> None:
    """A run goes on only with what it began with: otherwise its times could not be compared."""
    changed = [f"{k} {before.get(k)} -> {now.get(k)}" for k in sorted(before | now) if before.get(k) != now.get(k)]
    if chip_before != chip:
        changed.append(f"chip {chip_before} -> {chip}")
    if changed:
        raise UsageError(f"this run began with other versions ({', '.join(changed)}): start a new one")


def _run(
    bench: Bench, workload: Workload, journal: JsonlJournal, settings: Settings, json_: bool,
    *, elapsed_s: float = 0.0, resumed: bool = False,
) -> RunResult:  # fmt: skip
    from aka.cli import compose, console, view
    from aka.evaluate import sandbox

    library = compose.retriever()
    past = journal.events()
    with view.make_view(settings.max_trials, settings.max_minutes, json_, past=past, elapsed_s=elapsed_s) as shown:
        told = _Told(journal, shown)
        search = _search(bench, workload, told, settings, library, elapsed_s)
        bench.judge.whole_s = search.budget.whole_s
        bench.judge.progress = lambda gate: shown.gate(len(search.trials), gate)
        if resumed:
            told.append("resumed", {"from_seq": past[-1].seq, "sandbox": sandbox.probe().name})
            search.replay(past)
        try:
            with _terminations():
                stop = search.run()
        except KeyboardInterrupt:
            told.append("interrupted", {"signal": "SIGINT"})
            _report(journal)
            console.note(f"stopped; nothing is lost: aka optimize --resume {journal.folder}")
            raise
        result = _result(search, bench, journal, stop)
        told.append("finished", {"result": encode(result)})
    _report(journal, result)
    _why_nothing(search)
    return result


class _Told:
    """The journal, with each event shown as it is written."""

    def __init__(self, journal: JsonlJournal, shown: View) -> None:
        self._journal, self._shown = journal, shown
        self.store = journal.blobs
        self.folder = journal.folder

    def append(self, type: str, data: dict[str, Any]) -> Any:
        event = self._journal.append(type, data)
        self._shown(event)
        return event

    def events(self) -> Any:
        return self._journal.events()


def _search(
    bench: Bench, workload: Workload, told: _Told, settings: Settings, library: HybridRetriever, elapsed_s: float
) -> Search:
    from aka.cli import compose
    from aka.propose.catalog import OfflineProposer
    from aka.search.budget import Budget
    from aka.search.dropout import Dropout
    from aka.search.loop import Search

    proposer = OfflineProposer(
        bench.client, lambda doc_id: compose.reference_kernel(library, doc_id), branches=settings.branches
    )

    def publish(trial: Trial, baseline: Evaluation) -> str:
        return _write_best(told, workload, trial, baseline)

    def retract() -> None:
        (told.folder / "best.py").unlink(missing_ok=True)

    return Search(
        workload=workload, chip=bench.chip, proposer=proposer, evaluator=bench.judge, retriever=library, journal=told,
        store=told.store, budget=Budget(settings.max_trials, settings.max_minutes, elapsed_s),
        dropout=Dropout(
            settings.dropout, settings.dropout_fraction, settings.patience, settings.min_gain, settings.seed
        ),
        publish=publish, retract=retract, min_gain=settings.min_gain, early_stop=settings.early_stop_roofline,
        seed=settings.seed, piece=bench.client.piece,
    )  # fmt: skip


def _write_best(told: _Told, workload: Workload, trial: Trial, baseline: Evaluation) -> str:
    from aka.cli import compose
    from aka.journal.files import write_atomically
    from aka.report.best import best_source

    text = best_source(trial, baseline, workload, run=told.folder.name, versions=compose.versions())
    digest = told.store.put(text.encode())
    write_atomically(told.folder / "best.py", text.encode())
    return digest


def _result(search: Search, bench: Bench, journal: JsonlJournal, stop: str) -> RunResult:
    from aka.cli import compose
    from aka.evaluate import rungs
    from aka.search import outcome

    assert search.baseline is not None
    unwalled = any(trial.evaluation.sandbox == rungs.NO_WALL for trial in search.trials)  # in any session
    return outcome.result(
        chip=bench.chip, baseline=search.baseline, best=search.best, trials=len(search.trials), stop_reason=stop,
        best_path=str(journal.folder / "best.py"), run=str(journal.folder),
        sandbox=rungs.NO_WALL if unwalled else rungs.probe().name, versions=compose.versions(),
        weak=search.workload.weak,
    )  # fmt: skip


def _report(journal: JsonlJournal, result: RunResult | None = None) -> None:
    import json

    from aka.journal.files import write_atomically
    from aka.report import result as reports
    from aka.report.markdown import markdown

    write_atomically(journal.folder / "report.md", markdown(journal.events(), journal.blobs).encode())
    if result is not None:
        text = json.dumps(reports.result_json(result), indent=2, allow_nan=False) + "\n"
        write_atomically(journal.folder / "result.json", text.encode())


class _terminations:
    """SIGTERM ends a run as Ctrl-C does; a second Ctrl-C ends the process at once."""

    def __enter__(self) -> None:
        self._before = {s: signal.signal(s, self._stop) for s in (signal.SIGINT, signal.SIGTERM)}

    def _stop(self, number: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGINT, lambda *_: os._exit(130))
        raise KeyboardInterrupt

    def __exit__(self, *exc: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)


def _why_nothing(search: Search) -> None:
    """When no kernel of the library fits, say so and why, on stderr."""
    from aka.cli import console

    refused: dict[str, str] = getattr(search.proposer, "refused", {})
    if not search.trials:
        console.note("no reference kernel computes this op yet; looked at:")
        for kernel, reason in refused.items():
            console.note(f"  {kernel}: {reason}")


def _sentence(result: RunResult) -> str:
    from aka.report import words

    label = f"for {result.chip}, hardware: {result.hardware}{words.unwalled(result.sandbox)}"
    where = f"({words.basis(result.source, result.confidence)} {label})"
    before = words.us(result.baseline_us)
    trials = f"{result.trials} trial{'s' * (result.trials != 1)}"
    head, found = f"no improvement over XLA's {before} {where}", f"{result.run}/report.md"
    if result.status == "improved" and result.speedup:
        fraction = f", {result.roofline_fraction:.0%} of the roofline" if result.roofline_fraction else ""
        head = f"{result.speedup:.2f}x over XLA: {words.us(result.best_us)} against {before} {where}{fraction}"
        found = result.best_path or found
    if result.weak:
        head += f"\nweak workload: {'; '.join(result.weak)}"
    return f"{head}\nstopped: {result.stop_reason}, after {trials}\n{found}"

"""Interpret mode: it sees races that leave the values right, and may only reject."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from racy_kernels import OP, RACY, SHARED_BLOCK, STREAMED

from aka.cli import compose
from aka.errors import WireError, WorkerTimeout
from aka.evaluate import interpret, numerics, wire
from aka.evaluate.correctness import Fault, Tally
from aka.evaluate.exports import Exports
from aka.evaluate.facts import ArtifactFacts, KernelFacts
from aka.evaluate.patience import Patience
from aka.evaluate.pool import Pool, Worker, WorkerError
from aka.evaluate.references import Held, References
from aka.types import ArraySpec, Candidate, Evaluation, ShapeCase, Signature, Workload
from aka.workload.read import read_workload

HOSTILE = Path(__file__).parents[1] / "hostile"
CLEAN = "interpret mode: no race"
SLOT, CLEARED, ORDER = RACY


@pytest.fixture(scope="module")
def bench() -> Iterator[compose.Bench]:
    with compose.bench("v5e") as made:
        yield made


@pytest.fixture(scope="module")
def op(bench: compose.Bench, tmp_path_factory: pytest.TempPathFactory) -> Workload:
    path = tmp_path_factory.mktemp("op") / "scale.py"
    path.write_text(OP)
    return bench.client.describe(read_workload(path))


def judged(bench: compose.Bench, op: Workload, code: str, *, final: bool = True) -> Evaluation:
    return bench.judge.evaluate(op, Candidate(code, "as written", "test"), final=final)


def correctness(evaluation: Evaluation) -> str:
    return next(g.message for g in evaluation.gates if g.gate == "correctness")


def test_a_race_that_leaves_the_values_right_is_rejected(bench: compose.Bench, op: Workload) -> None:
    evaluation = judged(bench, op, RACY[ORDER])
    assert evaluation.verdict == "race"
    assert "candidate.py" in evaluation.gates[-1].evidence, "the model is told which lines race"


def test_a_race_with_a_copy_that_lands_early_is_rejected_in_a_trial(bench: compose.Bench, op: Workload) -> None:
    """The machine sees it on the artifact itself: nothing that the candidate's own process says is needed."""
    evaluation = judged(bench, op, RACY[SLOT], final=False)
    assert evaluation.verdict == "race" and "at their start" in evaluation.gates[-1].message


@pytest.mark.slow
@pytest.mark.parametrize(
    ("code", "final", "verdict"),
    [(RACY[CLEARED], False, "race"), (SHARED_BLOCK, True, "race"), (SHARED_BLOCK, False, ""), (RACY[ORDER], False, "")],
    ids=["cleared", "shared_block", "shared_block_in_a_trial", "order_in_a_trial"],
)
def test_who_sees_what(bench: compose.Bench, op: Workload, code: str, final: bool, verdict: str) -> None:
    """As the page on interpret mode has it: what the machine cannot see passes in a trial."""
    evaluation = judged(bench, op, code, final=final)
    if verdict:
        assert evaluation.verdict == verdict
    else:
        assert "comparisons" in correctness(evaluation)


@pytest.mark.slow
def test_honest_copies_pass(bench: compose.Bench, op: Workload) -> None:
    assert CLEAN in correctness(judged(bench, op, STREAMED))


@pytest.mark.slow
def test_the_honest_softmax_passes(bench: compose.Bench) -> None:
    softmax = bench.client.describe(read_workload(HOSTILE / "op_softmax.py"))
    evaluation = judged(bench, softmax, (HOSTILE / "h00_control_good.py").read_text())
    assert evaluation.accepted and CLEAN in correctness(evaluation)


# What the parent makes of an answer, with a stand-in for the process that gives it.

Answer = tuple[dict[str, Any], list[bytes]]
X = np.arange(8, dtype=np.float32)
CASE = ShapeCase("only", {}, *[Signature((ArraySpec((8,), "float32"),), 0)] * 2, 0.0, 64)


@dataclass
class Answering:
    """An exporter that gives one answer, or raises."""

    answer: Answer | Exception
    asked: list[str] = field(default_factory=list)

    def call(self, op: str, args: dict[str, Any], blobs: list[bytes], *, timeout_s: float) -> Answer:
        self.asked.append(op)
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


class Doubling:
    """The references of the op `2 * x`."""

    def get(self, case: ShapeCase, family: str) -> Held:
        want = [2.0 * X.astype(np.float64)]
        return Held([X], numerics.standard(want, want, None, ["float32"]))


def reply(values: Any, races: int = 0, said: str = "") -> Answer:
    specs, data = wire.pack([np.asarray(values, np.float32)])
    return {"races": races, "said": said, "arrays": specs}, data


def checked(answer: Answer | Exception) -> tuple[Fault | None, str]:
    worker = Answering(answer)
    made = Exports(cast(Pool, None), cast(Worker, worker), "v5e", "", Patience())
    made._facts["only"] = ArtifactFacts((KernelFacts("k", (3,), (), (), 0, None, False),), (), (), 0, (True,), 1024)
    workload = Workload("double", "", "", (CASE,), (CASE,), {}, (), ("x",))
    tally = Tally()
    fault = interpret.check(made, cast(References, Doubling()), workload, None, tally)
    assert worker.asked == ["interpret"]
    return fault, "; ".join(tally.notes or ())


def test_right_values_and_no_race_are_no_more_than_a_note() -> None:
    assert checked(reply(2 * X)) == (None, CLEAN)


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        (reply(2 * X + 1), "incorrect"),
        (reply(2 * X[:4]), "incorrect"),
        (({"races": 0, "said": "", "arrays": []}, []), "incorrect"),
        (reply(2 * X, 2, "RACE DETECTED\n  write here\n\nRACE DETECTED\n  write there\n\n"), "race"),
    ],
    ids=["values", "shape", "nothing", "race"],
)
def test_it_rejects(answer: Answer, code: str) -> None:
    fault, _ = checked(answer)
    assert fault is not None and fault.code == code
    assert "in interpret mode, at only" in fault.message


@pytest.mark.parametrize(
    "answer",
    [
        WorkerError("NotImplementedError", "a long story\nprng_seed is not known here\n"),
        WorkerTimeout("no answer within 60 s"),
        WireError("a frame too long"),
        ({"races": "none"}, []),
        ({"races": 0, "said": "", "arrays": [{"dtype": "object", "shape": [1]}]}, [b"x"]),
    ],
    ids=["raises", "hangs", "floods", "malformed", "no_array"],
)
def test_what_it_cannot_run_is_said_and_held_against_nobody(answer: Answer | Exception) -> None:
    fault, notes = checked(answer)
    assert fault is None and notes.startswith("interpret mode: could not run it: ")
    if isinstance(answer, WorkerError):
        assert notes.endswith("prng_seed is not known here")

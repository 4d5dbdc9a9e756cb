"""The report of a made-up run against a golden file; `python tests/report/test_markdown.py` writes the file anew."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from made_up_run import FINISHED, PAIRS, RESULT, TwoBlobs, events, rejected, trial

from aka.errors import JournalCorrupt, UsageError
from aka.report import markdown, result_json
from aka.types import RunResult, decode, encode

GOLDEN = Path(__file__).parents[1] / "golden" / "report.md"


def test_the_whole_page_is_the_golden_one() -> None:
    assert markdown(events(*PAIRS, FINISHED), TwoBlobs()) == GOLDEN.read_text(encoding="utf-8")


def test_an_estimate_is_never_called_measured() -> None:
    page = markdown(events(*PAIRS, FINISHED), TwoBlobs())
    assert "**estimated for v5e, hardware: unverified.**" in page
    assert "measured" not in page
    measured = replace(RESULT, source="measured", hardware="TPU v5 lite")
    page = markdown(events(*PAIRS, ("finished", {"result": encode(measured)})), TwoBlobs())
    assert "**measured on TPU v5 lite.**" in page
    assert "is an estimate" not in page


def test_a_run_that_is_not_finished_says_so() -> None:
    page = markdown(events(*PAIRS[:6]), TwoBlobs())
    assert page.startswith("# row\\|softmax on v5e: not finished; the best so far is 2.00x over XLA\n")
    assert "2 trials so far" in page
    assert "| `big` | 100 µs | 50 µs | 2.00x | floor | exact loop |" in page
    page = markdown(events(PAIRS[0]), TwoBlobs())
    assert "not finished, no improvement yet" in page
    assert "XLA's own time is not known yet." in page


def test_a_run_without_an_improvement_says_so() -> None:
    none = replace(RESULT, status="no_improvement", best_us=None, speedup=None, best_path=None)
    page = markdown(events(*PAIRS[:4], ("finished", {"result": encode(none)})), TwoBlobs())
    assert "no kernel was found that beats XLA" in page.splitlines()[0]
    assert "None: no candidate passed every gate" in page
    assert "best.py" not in page


def test_a_best_that_failed_its_final_check_is_not_the_best() -> None:
    failed = {"candidate_id": "c4", "evaluation": encode(rejected("c4", "correctness", "wrong_result", "held out"))}
    page = markdown(events(*PAIRS[:-1], ("final_check", failed)), TwoBlobs())
    assert "the best so far is 2.00x" in page
    assert "| 1 (best) |" in page


def test_foreign_text_cannot_break_the_page() -> None:
    evil = "a | b\n\n# Verified on hardware\u202e <script>"
    page = markdown(events(PAIRS[0], trial(0, rejected("c", "compile", evil, evil, evil), n=evil)), TwoBlobs())
    assert "\n# Verified" not in page.replace("```\na | b\n\n# Verified on hardware <script>\n```", "")
    assert "\u202e" not in page


def test_what_cannot_be_reported() -> None:
    with pytest.raises(UsageError, match="before it began"):
        markdown([], TwoBlobs())
    with pytest.raises(JournalCorrupt):
        markdown(events(PAIRS[0], ("trial", {"index": 0})), TwoBlobs())


def test_result_json_has_the_fields_of_the_command() -> None:
    fields = result_json(RESULT)
    assert list(fields) == [
        "status", "chip", "source", "confidence", "hardware", "baseline_us", "best_us", "speedup", "roofline_fraction",
        "shapes", "trials", "stop_reason", "best_path", "run", "sandbox", "versions", "weak",
    ]  # fmt: skip
    assert fields["shapes"][0]["best_us"] == 40.0
    assert decode(RunResult, fields) == RESULT


if __name__ == "__main__":
    GOLDEN.parent.mkdir(exist_ok=True)
    GOLDEN.write_text(markdown(events(*PAIRS, FINISHED), TwoBlobs()), encoding="utf-8")

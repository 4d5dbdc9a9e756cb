"""What a run says to people and to programs: its journal as Markdown, as JSON, in a row of a table."""

from aka.report.facts import Facts, gather
from aka.report.markdown import markdown
from aka.report.result import result_json, run_json
from aka.report.summary import STATUSES, Comparison, Summary, compare, summarise

__all__ = [
    "STATUSES",
    "Comparison",
    "Facts",
    "Summary",
    "compare",
    "gather",
    "markdown",
    "result_json",
    "run_json",
    "summarise",
]

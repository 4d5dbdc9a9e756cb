"""What a run says to people and to programs: its journal as Markdown, its result as JSON."""

from aka.report.markdown import markdown
from aka.report.result import result_json

__all__ = ["markdown", "result_json"]

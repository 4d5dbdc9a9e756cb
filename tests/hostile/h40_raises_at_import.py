"""REJECT candidate_error - import fails; the traceback is returned, truncated and with host paths scrubbed."""

raise ValueError("boom " + "x" * 100000)

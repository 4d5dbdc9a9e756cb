"""A compiler's message made readable: the first line that says something, and the text without noise."""

from __future__ import annotations

import re

EVIDENCE_BYTES = 4096
_PREFIX = re.compile(r"^(?:[A-Z_]+: )?(?:Mosaic failed to compile TPU kernel: )?")
_NOISE = re.compile(r"^(?:See https?://|Please report|The MLIR operation involved|#loc|\s*$)")
# Attributes of an HLO op that say nothing about the fault, and the serialized kernel itself.
_ATTRIBUTES = re.compile(
    r",? (?:metadata|frontend_attributes|backend_config|operand_layout_constraints|sharding)=\{(?:[^{}]|\{[^{}]*\})*\}"
)
_BOILERPLATE = re.compile(r" ?It should not be possible to run out of scoped vmem -|XLA:TPU compile permanent error\. ")
_BODY = re.compile(r"[A-Za-z0-9+/=]{200,}")


def condense(text: str) -> tuple[str, str]:
    """(message, evidence): one informative line, and the whole text shortened to at most 4 kB.

    An error that names its class on the first line and explains it on the second gives both in the message.
    """
    clean = _BOILERPLATE.sub("", _BODY.sub("...", _ATTRIBUTES.sub("", text)))
    lines = [line.rstrip() for line in clean.splitlines() if not _NOISE.match(line)]
    if not lines:
        return "the compiler failed without a message", ""
    message = _PREFIX.sub("", lines[0], count=1)
    if message.endswith(":") and len(lines) > 1:
        message = f"{message} {lines[1].strip()}"
    return message[:400], _cap("\n".join(lines))


def _cap(text: str) -> str:
    return text.encode()[:EVIDENCE_BYTES].decode(errors="ignore")

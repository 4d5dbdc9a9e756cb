"""Keeps secrets out of what a run writes: known values from the environment, and the shapes of known keys."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

MASK = "[redacted]"
_SECRET_NAME = re.compile(r"(?:^|_)(?:API)?(?:KEY|TOKEN|SECRET|PASSWORD|PASSWD)(?:_|$)", re.IGNORECASE)
_SECRET_SHAPES = (
    r"(?<![\w-])sk-[A-Za-z0-9_-]{16,}",
    r"(?<![\w-])AIza[A-Za-z0-9_-]{30,}",
    r"(?<![\w-])ya29\.[A-Za-z0-9_-]{20,}",
)
# Shorter values ("1", "true", "none") are switches; masking them would spoil ordinary text.
_MIN_SECRET_CHARS = 8


class Redactor:
    """Replaces secrets in JSON values by `[redacted]`. The environment is read once, when it is made."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        values = {
            value.strip()
            for name, value in environment.items()
            if _SECRET_NAME.search(name) and len(value.strip()) >= _MIN_SECRET_CHARS
        }
        known = [re.escape(value) for value in sorted(values, key=len, reverse=True)]
        self._pattern = re.compile("|".join([*known, *_SECRET_SHAPES]))

    def text(self, text: str) -> str:
        return self._pattern.sub(MASK, text)

    def json(self, value: Any) -> Any:
        """A copy of `value` (what `json.dumps` takes) with every string in it redacted, keys too."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, Mapping):
            return {self.json(key): self.json(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self.json(item) for item in value]
        return value

"""What has been found already: one JSON line for each answer, appended as it comes, so that a stopped run goes on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


class Ledger:
    """All answers in the `*.jsonl` files of a folder; new ones go to the file `name`, which is no other's."""

    def __init__(self, folder: Path, name: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.known: dict[str, dict[str, Any]] = {}
        for path in sorted(folder.glob("*.jsonl")):
            for line in path.read_text().splitlines():
                self._read(line)
        self._path = folder / f"{name}.jsonl"

    def _read(self, line: str) -> None:
        try:
            made = json.loads(line)
        except ValueError:
            return  # the end of a run that was killed while it wrote
        if isinstance(made, dict) and "key" in made:
            self.known[made["key"]] = made

    def add(self, key: str, **answer: Any) -> dict[str, Any]:
        made = {"key": key, **answer}
        with self._path.open("a") as file:
            file.write(json.dumps(made) + "\n")
        self.known[key] = made
        return made

"""A worker for the tests: one JSON request a line, {program, chip, op, args}; one JSON answer a line."""

from __future__ import annotations

import json
import os
import sys
import time
from dataclasses import asdict, is_dataclass


def main():
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # libtpu prints on stdout too
    import programs
    from jax import export

    from aka.targets import aot, meter

    meter.warm()
    for line in sys.stdin:
        request = json.loads(line)
        start = time.monotonic()
        data = programs.artifact(request["program"], request["chip"])
        if request["op"] == "compile":
            made = aot.compile(export.deserialize(bytearray(data)), request["chip"])
            answer = {k: v for k, v in vars(made).items() if k != "executable"} if is_dataclass(made) else asdict(made)
        else:
            answer, _ = meter.OPS[request["op"]]({"chip": request["chip"], **request["args"]}, [data])
        answer["wall_s"] = time.monotonic() - start
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main()

"""REJECT static_reject; if run: candidate_error (no artifact; link never followed) - replaces its output file by a symlink to /etc/hostname; evaluator must not follow it."""

import os

for n in ("result.bin", "tpu.bin", "cpu.bin", "artifact.bin"):
    try:
        os.symlink("/etc/hostname", n)
    except OSError:
        pass


def workload(x):
    raise RuntimeError("nothing to export")

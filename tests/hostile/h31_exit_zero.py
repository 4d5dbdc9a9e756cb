"""REJECT static_reject; if run: protocol_error - sys.exit(0) while tracing; exit status 0 must never mean success."""

import sys


def workload(x):
    print("all tests passed")
    sys.exit(0)

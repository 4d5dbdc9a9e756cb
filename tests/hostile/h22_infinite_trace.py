"""REJECT timeout - never finishes tracing."""


def workload(x):
    while True:
        pass

"""The exception tree. A candidate's fault is never an exception: it is a `GateResult`.

AkaError                      exit code
├── UsageError                2   a bad flag, path or value
│   ├── ConfigError           2   a bad setting in aka.toml, [tool.aka] or the environment
│   └── WorkloadError         2   op.py cannot be used as a workload
├── KnowledgeError            2   the library or its index
│   ├── IndexMissing          2
│   ├── IndexStale            2   built with another model, schema or library
│   └── DocumentInvalid       2
├── Busy                      3   another process holds the lock
├── JournalCorrupt            4
├── NoSpace                   5
├── BackendUnavailable        6   no compiler, no device, no key on this machine
└── SandboxError              70  the judge's own machinery
    ├── WorkerStartFailed
    ├── WorkerDied            a worker process ended without an answer (the caller decides whose fault that was)
    ├── WorkerTimeout
    └── WireError             a frame that does not follow the protocol
"""

from __future__ import annotations


class AkaError(Exception):
    """Base of every error that `aka` raises on purpose; its text is one line for a person."""

    exit_code = 70


class UsageError(AkaError):
    exit_code = 2


class ConfigError(UsageError):
    pass


class WorkloadError(UsageError):
    pass


class KnowledgeError(AkaError):
    exit_code = 2


class IndexMissing(KnowledgeError):
    pass


class IndexStale(KnowledgeError):
    pass


class DocumentInvalid(KnowledgeError):
    pass


class Busy(AkaError):
    exit_code = 3


class JournalCorrupt(AkaError):
    exit_code = 4


class NoSpace(AkaError):
    exit_code = 5


class BackendUnavailable(AkaError):
    exit_code = 6


class SandboxError(AkaError):
    exit_code = 70


class WorkerStartFailed(SandboxError):
    pass


class WorkerDied(SandboxError):
    """`signal` or `returncode` say how it ended; `log` holds the tail of what it printed."""

    def __init__(self, message: str, *, returncode: int | None = None, log: str = "") -> None:
        super().__init__(message)
        self.returncode = returncode
        self.log = log


class WorkerTimeout(SandboxError):
    def __init__(self, message: str, *, log: str = "") -> None:
        super().__init__(message)
        self.log = log


class WireError(SandboxError):
    pass

"""What can go wrong with an artifact. Each of the three means something else to the judge.

ArtifactError             (an AkaError)
├── Undecodable           the bytes do not have the form that we know: nothing can be said about them
├── Unsupported           the machine does not know this operation: the judge calls it unsupported_feature
└── MachineFault          the kernel itself is wrong: out of bounds, deadlock, a wait without a copy
"""

from __future__ import annotations

from aka.errors import AkaError


class ArtifactError(AkaError):
    """Base of everything that this package raises on purpose."""


class Undecodable(ArtifactError):
    """The artifact does not have a form that this version of the decoder knows."""


class Unsupported(ArtifactError):
    """The machine has no meaning for an operation. `op` is its name without the `stable_mosaic.` prefix."""

    def __init__(self, op: str, detail: str = "") -> None:
        super().__init__(f"unsupported operation {op}" + (f": {detail}" if detail else ""))
        self.op = op


class MachineFault(ArtifactError):
    """The kernel did what no correct kernel does; the candidate's fault."""

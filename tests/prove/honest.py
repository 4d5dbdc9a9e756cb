"""Random small workloads, each with a Pallas kernel that is right by construction: a rejection is the judge's fault.

Sizes, blocks, dtypes, epilogues and formulas are drawn by hypothesis. No size need be a multiple of its block: the
kernels mask what reaches over the edge wherever it could matter.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

from honest_integers import integer
from honest_moves import aliased, elementwise, recurrence, several
from honest_products import attention, matmul
from honest_reductions import column_reduction, norm, row_reduction
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from making import Example

KINDS = (
    matmul, row_reduction, column_reduction, norm, attention, integer, several, aliased, elementwise, recurrence,
)  # fmt: skip


def any_kind() -> st.SearchStrategy[Example]:
    return st.one_of(*(kind() for kind in KINDS))


@functools.cache
def examples(count: int) -> tuple[Example, ...]:
    """`count` different examples, as many of each kind as of any other, the same at every call."""
    each = -(-count // len(KINDS))
    found = [_drawn(kind, each) for kind in KINDS]
    return tuple(group[i] for i in range(each) for group in found if i < len(group))[:count]


def _drawn(kind: Callable[[], st.SearchStrategy[Example]], count: int) -> list[Example]:
    """The first `count` different examples of a kind that hypothesis draws without a random seed."""
    found: dict[str, Example] = {}

    @settings(
        max_examples=4 * count, derandomize=True, database=None, deadline=None, phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(kind())
    def collect(example: Example) -> None:
        found.setdefault(example.op + example.code, example)

    collect()
    return list(found.values())[:count]

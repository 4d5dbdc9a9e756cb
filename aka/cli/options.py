"""Options that several commands share."""

from __future__ import annotations

from typing import Annotated

import typer

Unsafe = Annotated[
    bool,
    typer.Option(
        "--unsafe-no-sandbox",
        help="Where no sandbox works, run the op and its kernels without one, as any program of yours.",
    ),
]

"""Kernels bound by what they move: rotary embedding, reductions, transposes, gates, scans, optimizer steps, pooling."""

from __future__ import annotations

from kernel_table import Fixed, Ints, Listed

ADAM = {"lr": 0.1, "b1": 0.8, "b2": 0.9, "eps": 1e-3, "weight_decay": 0.1, "block_rows": 16, "block_cols": 128}
ROPE = [([(2, 40, 5, 128), (40, 64), (40, 64)], {"block_s": 16}), ([(40, 3, 64), (40, 32), (40, 32)], {"block_s": 16})]


def squares(shape: tuple[int, ...]) -> Ints:
    """A second moment is never negative, so whole numbers stand for it."""
    return Ints(shape, high=4, dtype="float32")


KERNELS = [
    Listed(
        "rope/half_split.py",
        small=[(2, 200, 100, 64), (200, 32), (200, 32)],
        cases=ROPE,
        production=[([(4, 4096, 32, 128), Fixed((4096, 64)), Fixed((4096, 64))], "bfloat16")],
    ),
    Listed(
        "rope/half_split_qk.py",
        small=[(2, 200, 100, 64), (2, 200, 4, 64), (200, 32), (200, 32)],
        cases=[
            ([(2, 40, 6, 128), (2, 40, 3, 128), (40, 64), (40, 64)], {"block_s": 16}),
            ([(40, 3, 64), (40, 1, 64), (40, 32), (40, 32)], {"block_s": 16}),
        ],
        production=[
            ([(4, 4096, 32, 128), (4, 4096, 8, 128), Fixed((4096, 64)), Fixed((4096, 64))], "bfloat16"),
        ],
    ),
    Listed(
        "rope/half_split_heads_first.py",
        small=[(2, 3, 200, 90), (200, 45), (200, 45)],
        cases=[
            ([(2, 3, 40, 128), (40, 64), (40, 64)], {"block_s": 16}),
            ([(5, 40, 64), (40, 32), (40, 32)], {"block_s": 16}),
        ],
        production=[([(4, 32, 4096, 128), Fixed((4096, 64)), Fixed((4096, 64))], "bfloat16")],
        oversized=False,
    ),
    Listed(
        "rope/interleaved.py",
        small=[(2, 200, 100, 64), (200, 32), (200, 32)],
        cases=ROPE,
        production=[([(4, 4096, 32, 128), Fixed((4096, 64)), Fixed((4096, 64))], "bfloat16")],
    ),
    Listed(
        "column_reduction/blocks.py",
        small=[(300, 1200)],
        cases=[
            ([(40, 300)], {"block_m": 16, "block_n": 128, "mean": True, "squares": True}),
            ([(48, 256)], {"block_m": 16, "block_n": 128}),
        ],
        production=[([(32768, 4096)], "float32")],
    ),
    Listed(
        "row_reduction/blocks.py",
        small=[(3, 100, 600)],
        cases=[
            ([(3, 100, 300)], {"block_rows": 128, "block_cols": 128, "mean": True, "squares": True}),
            ([(256, 384)], {"block_rows": 128, "block_cols": 128}),
        ],
        production=[([(32768, 4096)], "float32")],
    ),
    Listed(
        "middle_reduction/blocks.py",
        small=[(3, 300, 1200)],
        cases=[
            ([(3, 40, 300)], {"block_b": 2, "block_s": 16, "block_d": 128}),
            ([(3, 48, 256)], {"block_b": 1, "block_s": 16, "block_d": 128, "mean": False}),
        ],
        production=[([(16, 4096, 2048)], "bfloat16")],
    ),
    Listed(
        "transpose/blocks.py",
        small=[(2, 300, 600)],
        cases=[
            ([(2, 300, 200)], {"block_m": 128, "block_n": 128}),
            ([(256, 384)], {"block_m": 128, "block_n": 128}),
        ],
        production=[([(8192, 8192)], "float32"), ([(8192, 8192)], "bfloat16")],
    ),
    Listed(
        "glu/swiglu_elementwise.py",
        small=[(100, 1200), (100, 1200)],
        cases=[([(3, 13, 200), (3, 13, 200)], {"block_rows": 16, "block_cols": 128})],
        production=[([(8192, 8192)] * 2, "bfloat16")],
    ),
    Listed(
        "glu/swiglu_split.py",
        small=[(100, 1536)],
        cases=[
            ([(3, 13, 768)], {"block_rows": 16, "block_cols": 256}),
            ([(3, 13, 400)], {"block_rows": 16, "block_cols": 128, "gate_first": False}),
        ],
        production=[([(8192, 16384)], "bfloat16")],
    ),
    Listed(
        "geglu/elementwise.py",
        small=[(100, 1200), (100, 1200)],
        cases=[
            ([(3, 13, 200), (3, 13, 200)], {"block_rows": 16, "block_cols": 128}),
            ([(40, 256), (40, 256)], {"block_rows": 16, "block_cols": 128, "approximate": False}),
        ],
        production=[([(8192, 8192)] * 2, "bfloat16")],
    ),
    Listed(
        "geglu/split.py",
        small=[(100, 1536)],
        cases=[
            ([(3, 13, 768)], {"block_rows": 16, "block_cols": 256, "gate_first": False}),
            ([(3, 13, 400)], {"block_rows": 16, "block_cols": 128, "approximate": False}),
        ],
        production=[([(8192, 16384)], "bfloat16")],
    ),
    Listed(
        "cumsum/rows.py",
        small=[(100, 1200)],
        cases=[
            ([(3, 13, 300)], {"block_rows": 16, "block_cols": 128}),
            ([(40, 768)], {"block_rows": 16, "block_cols": 256}),
        ],
        production=[([(8192, 8192)], "float32")],
    ),
    Listed(
        "adamw/fused_update.py",
        small=[(100, 1200)] * 3 + [squares((100, 1200))],
        cases=[
            ([(40, 300)] * 3 + [squares((40, 300))], ADAM),
            ([(3, 13, 200), (3, 13, 200), Fixed((3, 13, 200)), squares((3, 13, 200))], {**ADAM, "step": 3}),
        ],
        production=[([(8192, 8192)] * 4, "float32")],
    ),
    Listed(
        "adamw/fused_update_step.py",
        small=[(100, 1200)] * 3 + [squares((100, 1200)), Ints((), high=9, low=1)],
        cases=[([(3, 13, 200)] * 3 + [squares((3, 13, 200)), Ints((), high=9, low=1)], ADAM)],
        production=[([(8192, 8192)] * 4 + [Ints((), high=9, low=1)], "float32")],
    ),
    Listed(
        "mlp/two_matmul.py",
        small=[(3, 100, 200), (200, 600), (600, 200)],
        cases=[
            ([(3, 13, 200), (200, 300), (300, 120)], {"block_m": 16, "block_h": 128}),
            ([(32, 128), (128, 384), (384, 128)], {"block_m": 16, "block_h": 128, "approximate": False}),
        ],
        production=[([(8192, 2048), (2048, 8192), (8192, 2048)], "bfloat16")],
        tolerance=40,  # sums of 300 products of numbers near 14 cancel; in bfloat16 the hidden layer is rounded
    ),
]

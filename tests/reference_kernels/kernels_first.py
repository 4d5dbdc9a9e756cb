"""The first six kernels of the library."""

from __future__ import annotations

from kernel_table import Listed

TILES = {"block_m": 16, "block_n": 128, "block_k": 128}

KERNELS = [
    Listed(
        "rms_norm/row_blocks.py",
        small=[(3, 200, 200), (200,)],
        cases=[([(3, 13, 200), (200,)], {"block_rows": 16, "eps": 1e-2})],
        production=[([(8, 4096, 8192), (8192,)], "bfloat16")],
    ),
    Listed(
        "softmax/row_blocks.py",
        small=[(3, 100, 200)],
        cases=[([(3, 13, 200)], {"block_rows": 16})],
        production=[([(8192, 8192)], "float32")],
    ),
    Listed(
        "elementwise/bias_gelu_residual.py",
        small=[(100, 1200), (1200,), (100, 1200)],
        cases=[
            ([(3, 13, 200), (200,), (3, 13, 200)], {"block_rows": 16, "block_cols": 128, "approximate": False}),
        ],
        production=[([(8192, 8192), (8192,), (8192, 8192)], "bfloat16")],
        oversized=False,
    ),
    Listed(
        "matmul/tiled_f32_accumulator.py",
        small=[(300, 300), (300, 200)],
        cases=[([(32, 384), (384, 256)], TILES), ([(40, 300), (300, 200)], TILES)],
        production=[
            ([(4096, 4096), (4096, 4096)], "bfloat16"),
            ([(8192, 8192), (8192, 28672)], "bfloat16"),
        ],
    ),
    Listed(
        "matmul/bias_gelu_epilogue.py",
        small=[(300, 300), (300, 200), (200,)],
        cases=[
            ([(32, 384), (384, 256), (256,)], TILES),
            ([(40, 300), (300, 200), (200,)], {**TILES, "approximate": False}),
        ],
        production=[([(4096, 8192), (8192, 8192), (8192,)], "float32")],
    ),
    Listed(
        "attention/flash_causal.py",
        small=[(2, 300, 64)] * 3,
        cases=[
            ([(2, 256, 128)] * 3, {"block_q": 128, "block_kv": 128}),
            ([(1, 2, 300, 64)] * 3, {"block_q": 128, "block_kv": 128, "scale": 0.3}),
            ([(300, 64)] * 3, {"block_q": 64, "block_kv": 128, "causal": False}),
            ([(300, 192)] * 3, {"block_q": 128, "block_kv": 256, "causal": True}),
            ([(1, 72, 64)] * 3, {"block_q": 32, "block_kv": 512}),
        ],
        production=[([(8, 4096, 128)] * 3, "bfloat16")],
    ),
]

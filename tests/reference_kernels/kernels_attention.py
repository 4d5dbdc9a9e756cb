"""Kernels of attention's kin: grouped and windowed heads, decoding, other layouts, retention and linear attention."""

from __future__ import annotations

from kernel_table import Listed

GROUPED = [(1, 4, 300, 64), (1, 2, 300, 64), (1, 2, 300, 64)]
BSHD = [(1, 300, 4, 64), (1, 300, 2, 64), (1, 300, 2, 64)]

KERNELS = [
    # Without a softmax, sums of hundreds of bf16 products grow to 30 and errors with them, the reference's too.
    Listed(
        "retention/chunked.py",
        small=[(1, 2, 600, 64)] * 3,
        cases=[
            ([(2, 3, 512, 128)] * 3, {"block_rows": 256, "chunk": 128, "scale": 0.02}),
            ([(1, 3, 300, 64), (1, 3, 300, 64), (1, 3, 300, 200)], {"block_rows": 128, "chunk": 128, "scale": 0.02}),
            ([(1, 2, 700, 64)] * 3, {"block_rows": 512, "chunk": 256, "scale": 0.02}),
        ],
        production=[([(1, 16, 4096, 128)] * 3, "bfloat16"), ([(4, 16, 2048, 256)] * 3, "bfloat16")],
        tolerance=4,
    ),
    Listed(
        "linear_attention/chunked_causal.py",
        small=[(2, 600, 64)] * 3,
        cases=[
            ([(2, 3, 512, 128)] * 3, {"block_rows": 256, "chunk": 128, "scale": 0.02}),
            ([(3, 300, 64), (3, 300, 64), (3, 300, 200)], {"block_rows": 128, "chunk": 128, "scale": 0.02}),
            ([(700, 64)] * 3, {"block_rows": 512, "chunk": 256, "scale": 0.02}),
        ],
        production=[([(1, 16, 4096, 128)] * 3, "bfloat16")],
        tolerance=4,
    ),
    Listed(
        "attention_gqa/flash_grouped.py",
        small=GROUPED,
        cases=[
            ([(2, 6, 256, 128), (2, 2, 256, 128), (2, 2, 256, 128)], {"block_q": 64, "block_kv": 128}),
            (GROUPED, {"block_q": 64, "block_kv": 128, "scale": 0.3}),
            (GROUPED, {"block_q": 96, "block_kv": 256, "causal": False}),
            ([(1, 3, 72, 64), (1, 3, 72, 64), (1, 3, 72, 64)], {"block_q": 32, "block_kv": 512}),
        ],
        production=[([(1, 32, 4096, 128), (1, 8, 4096, 128), (1, 8, 4096, 128)], "bfloat16")],
    ),
    Listed(
        "attention_layout/bshd.py",
        small=BSHD,
        cases=[
            ([(2, 256, 3, 128)] * 3, {"block_q": 64, "block_kv": 128}),
            (BSHD, {"block_q": 64, "block_kv": 128, "scale": 0.3}),
            (BSHD, {"block_q": 96, "block_kv": 256, "causal": False}),
        ],
        production=[([(1, 4096, 16, 128)] * 3, "bfloat16")],
    ),
    Listed(
        "attention_window/sliding.py",
        small=[(2, 300, 64)] * 3,
        cases=[
            ([(2, 512, 128)] * 3, {"block_q": 128, "block_kv": 128, "window": 200}),
            ([(1, 2, 300, 64)] * 3, {"block_q": 64, "block_kv": 128, "window": 64, "scale": 0.3}),
            ([(700, 64)] * 3, {"block_q": 256, "block_kv": 128, "window": 100}),
            ([(700, 64)] * 3, {"block_q": 64, "block_kv": 256, "window": 5}),
            ([(300, 192)] * 3, {"block_q": 128, "block_kv": 128, "window": 1000}),
        ],
        production=[([(16, 8192, 128)] * 3, "bfloat16")],
    ),
    Listed(
        "decode_attention/split_kv.py",
        small=[(1, 100, 64), (1, 100, 300, 64), (1, 100, 300, 64)],
        cases=[
            ([(3, 16, 128), (3, 4, 384, 128), (3, 4, 384, 128)], {"block_kv": 128, "chunk": 128}),
            ([(2, 10, 64), (2, 5, 300, 64), (2, 5, 300, 64)], {"block_kv": 256, "chunk": 128, "scale": 0.3}),
            ([(2, 5, 64), (2, 5, 300, 64), (2, 5, 300, 64)], {"block_kv": 128, "chunk": 128}),
        ],
        production=[([(16, 32, 128), (16, 8, 4096, 128), (16, 8, 4096, 128)], "bfloat16")],
        oversized=False,  # 8192 keys of depth 64 fit
    ),
]

"""Matrix products with something fused, transposed, quantised, batched or skinny."""

from __future__ import annotations

from kernel_table import Fixed, Ints, Listed

TILES = {"block_m": 16, "block_n": 128, "block_k": 128}


def int8(*shape: int) -> Ints:
    return Ints(shape, 127, -127, "int8")


KERNELS = [
    Listed(
        "glu_matmul/swiglu_gate_up.py",
        small=[(300, 300), (300, 200), (300, 200)],
        cases=[
            ([(2, 20, 384), (384, 256), (384, 256)], TILES),
            ([(40, 300), (300, 200), (300, 200)], TILES),
            ([(40, 300), (300, 200), (300, 200)], {**TILES, "block_k": 512}),
        ],
        production=[([(4096, 4096), (4096, 14336), (4096, 14336)], "bfloat16")],
        tolerance=10.0,  # one factor cancels to nearly nothing while the other, and the error's scale, is about 400
    ),
    Listed(
        "matmul_group_norm/fused_epilogue.py",
        small=[(300, 300), (300, 320), (320,), (320,), (320,)],
        cases=[
            ([(32, 384), (384, 512), (512,), (512,), (512,)], {**TILES, "groups": 4}),
            ([(32, 384), (384, 512), (512,), (512,), (512,)], {**TILES, "block_n": 256, "groups": 64, "eps": 1e-3}),
            ([(40, 300), (300, 384), (384,), (384,), (384,)], {**TILES, "groups": 32}),
            ([(40, 300), (300, 480), (480,), (480,), (480,)], {**TILES, "groups": 3}),
            ([(40, 300), (300, 200), (200,), (200,), (200,)], {**TILES, "groups": 8}),
        ],
        production=[([(4096, 4096), (4096, 4096), (4096,), (4096,), (4096,)], "float32")],
    ),
    Listed(
        "batched_matmul/tiled.py",
        small=[(3, 300, 300), (3, 300, 200)],
        cases=[
            ([(2, 3, 32, 384), (2, 3, 384, 256)], {**TILES, "block_b": 4}),
            ([(3, 40, 300), (3, 300, 200)], TILES),
            ([(5, 40, 72), (5, 72, 200)], {"block_b": 2}),
            ([(40, 300), (300, 200)], TILES),
        ],
        production=[
            ([(16, 2048, 1024), (16, 1024, 2048)], "bfloat16"),
            ([(512, 128, 256), (512, 256, 128)], "bfloat16"),
        ],
    ),
    Listed(
        "matmul_transposed/nt.py",
        small=[(300, 300), (200, 300)],
        cases=[([(2, 16, 384), (256, 384)], TILES), ([(40, 300), (200, 300)], TILES), ([(40, 300), (200, 300)], {})],
        production=[([(4096, 4096), (4096, 4096)], "bfloat16")],
    ),
    Listed(
        "matmul_transposed/tn.py",
        small=[(300, 300), (300, 200)],
        cases=[
            ([(384, 256), (384, 256)], {**TILES, "block_m": 128}),
            ([(300, 200), (300, 200)], {**TILES, "block_m": 128}),
            ([(300, 40), (300, 200)], {}),
        ],
        production=[([(4096, 4096), (4096, 4096)], "bfloat16")],
    ),
    Listed(
        "int8_matmul/w8a8_scaled.py",
        small=[int8(300, 300), int8(300, 200), (300, 1), (200,)],
        cases=[
            ([int8(64, 384), int8(384, 256), (64,), (256,)], {**TILES, "block_m": 32}),
            ([int8(40, 300), int8(300, 200), Fixed((40, 1)), Fixed((1, 200))], {**TILES, "block_m": 32}),
            ([int8(40, 300), int8(300, 200), Fixed((40, 1)), Fixed((200,))], {"to_bf16": True}),
        ],
        production=[([int8(4096, 8192), int8(8192, 8192), Fixed((4096, 1)), Fixed((8192,))], "float32")],
    ),
    Listed(
        "weight_only_matmul/int8_weight.py",
        small=[(300, 300), int8(300, 200), (200,)],
        cases=[
            ([(2, 16, 384), int8(384, 256), (256,)], TILES),
            ([(40, 300), int8(300, 200), Fixed((1, 200))], TILES),
        ],
        production=[
            ([(32, 8192), int8(8192, 28672), Fixed((28672,))], "bfloat16"),
            ([(4096, 4096), int8(4096, 14336), Fixed((14336,))], "bfloat16"),
        ],
        tolerance=8.0,  # sums of products up to 500 cancel to nearly nothing
    ),
    Listed(
        "decode_matmul/skinny.py",
        small=[(5, 300), (300, 200)],
        cases=[
            ([(2, 4, 384), (384, 256)], {"block_n": 128, "block_k": 128}),
            ([(3, 300), (300, 200)], {"block_n": 128, "block_k": 128}),
            ([(300,), (300, 200)], {"block_n": 128}),
        ],
        production=[([(16, 8192), (8192, 28672)], "bfloat16")],
    ),
    Listed(
        "norm_matmul/rms_prologue.py",
        small=[(300, 300), (300,), (300, 200)],
        cases=[
            ([(2, 16, 384), (384,), (384, 256)], {"block_m": 16, "block_n": 128, "eps": 1e-2}),
            ([(40, 300), (300,), (300, 200)], {"block_m": 16, "block_n": 128}),
            ([(200, 300), (300,), (300, 200)], {"block_m": 200, "block_n": 128}),
        ],
        production=[([(4096, 4096), (4096,), (4096, 6144)], "bfloat16")],
        tolerance=6.0,  # the normalised rows are rounded to bf16 before sums of about 20 are made of them
    ),
]

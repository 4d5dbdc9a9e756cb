"""Kernels that work row by row: norms, log-softmax, cross entropy, quantization."""

from __future__ import annotations

from kernel_table import Ints, Listed

LOGITS = [(8192, 32000), Ints((8192,), 31999)]
ONLINE = [
    ([(300, 640), Ints((300,), 639)], {"block_rows": 128, "block_vocab": 256}),
    ([(3, 100, 600), Ints((3, 100), 599)], {"block_rows": 128, "block_vocab": 128}),
    ([(70, 200), Ints((70,), -1, low=-200)], {"block_rows": 64, "block_vocab": 128}),
]

KERNELS = [
    Listed(
        "layer_norm/row_blocks.py",
        small=[(3, 200, 200), (200,), (200,)],
        cases=[([(3, 13, 200), (200,), (200,)], {"block_rows": 16, "eps": 1e-2})],
        production=[([(8, 4096, 4096), (4096,), (4096,)], "bfloat16")],
    ),
    Listed(
        "cross_entropy/mean_loss.py",
        small=[(300, 1200), Ints((300,), 1199)],
        cases=ONLINE,
        production=[(LOGITS, "bfloat16"), (LOGITS, "float32")],
    ),
    Listed(
        "cross_entropy/row_losses.py",
        small=[(300, 1200), Ints((300,), 1199)],
        cases=ONLINE,
        production=[(LOGITS, "bfloat16")],
    ),
    Listed(
        "residual_norm/rms_add.py",
        small=[(3, 200, 200), (3, 200, 200), (200,)],
        cases=[([(3, 13, 200), (3, 13, 200), (200,)], {"block_rows": 16, "eps": 1e-2})],
        production=[([(8, 4096, 4096), (8, 4096, 4096), (4096,)], "bfloat16")],
    ),
    Listed(
        "residual_norm/rms_add_one_output.py",
        small=[(3, 200, 200), (3, 200, 200), (200,)],
        cases=[([(3, 13, 200), (3, 13, 200), (200,)], {"block_rows": 16, "eps": 1e-2})],
        production=[([(8, 4096, 4096), (8, 4096, 4096), (4096,)], "bfloat16")],
    ),
    Listed(
        "log_softmax/row_blocks.py",
        small=[(3, 100, 200)],
        cases=[([(3, 13, 200)], {"block_rows": 16})],
        production=[([(8192, 32000)], "bfloat16")],
    ),
    Listed(
        "group_norm/channels_last.py",
        small=[(300, 320), (320,), (320,)],
        cases=[
            ([(3, 13, 512), (512,), (512,)], {"block_rows": 16, "block_lanes": 256, "groups": 32, "eps": 1e-2}),
            ([(39, 400), (400,), (400,)], {"block_rows": 16, "groups": 10}),
            ([(39, 320), (320,), (320,)], {"block_rows": 16, "groups": 4}),
            ([(39, 512), (512,), (512,)], {"block_rows": 16, "groups": 2}),
        ],
        production=[([(16, 4096, 2048), (2048,), (2048,)], "bfloat16")],
    ),
    Listed(
        "quantize/rowwise_int8.py",
        small=[(3, 200, 200)],
        cases=[([(3, 100, 200)], {"block_rows": 128}), ([(3, 70, 200)], {"block_rows": 64, "floor": 3.5})],
        production=[([(8, 4096, 4096)], "bfloat16")],
    ),
]

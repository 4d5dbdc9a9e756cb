"""`aka`: turns a JAX op into a faster Pallas kernel for TPU, and proves it.

The switches below must be in the environment before a third-party library is imported; each stops a library from
reaching the network or claiming a device (measured: see docs/decisions/0002-environment.md).
"""

import os

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("JAX_PLATFORMS", "cpu")

__version__ = "0.1.0"

"""Run a whole TPU artifact on the CPU: XLA compiles the StableHLO around the kernels, the NumPy machine runs them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.extend.backend
import numpy as np
from jax.export import Exported
from jaxlib import _jax
from jaxlib.mlir import ir

from aka.artifact import mlir
from aka.artifact.decode import Array, Kernel, kernels
from aka.artifact.errors import ArtifactError, Unsupported
from aka.artifact.machine import Mxu, execute
from aka.artifact.memory import MachineStats

_CALLBACK_TARGET = "xla_ffi_python_cpu_callback"
# The form in which jax.pure_callback lowers: the index stands in an attribute that needs this api_version.
_API_VERSION = 1


def run(
    exported: Exported,
    args: Sequence[np.ndarray[Any, Any]],
    *,
    lazy: bool = True,
    mxu: Mxu = "bf16",
    split: int | None = None,
) -> tuple[list[np.ndarray[Any, Any]], MachineStats]:
    """The flat results of the program on these flat arguments, and what its kernels did (all runs added up).

    The arguments must have the shapes and dtypes of `exported.in_avals`. Raises Unsupported if the machine or the CPU
    compiler lacks an operation, MachineFault if a kernel is wrong, ValueError on other arguments.
    """
    return Prepared(exported, lazy=lazy, mxu=mxu).run(args, split)


class Prepared:
    """A program compiled once for many runs; compiling costs 0.1 s and more, however small the kernel."""

    def __init__(self, exported: Exported, *, lazy: bool = True, mxu: Mxu = "bf16") -> None:
        self.exported = exported
        self._host = _Host(kernels(exported), lazy, mxu)
        try:
            self._loaded = _load_on_cpu(exported, self._host.callbacks())
        except jax.errors.JaxRuntimeError as error:
            raise Unsupported("stablehlo", str(error).splitlines()[0]) from error

    def run(
        self, args: Sequence[np.ndarray[Any, Any]], split: int | None = None
    ) -> tuple[list[np.ndarray[Any, Any]], MachineStats]:
        """Like the function `run`; `split` as in `aka.artifact.machine.execute`."""
        _check(self.exported, args)
        host = self._host
        host.stats, host.failure, host.split = MachineStats(), None, split
        try:
            results = _execute(self._loaded, [args[i] for i in self.exported.module_kept_var_idx])
        except jax.errors.JaxRuntimeError as error:
            if host.failure is not None:
                raise host.failure from None
            raise Unsupported("stablehlo", str(error).splitlines()[0]) from error
        return results, host.stats


def _check(exported: Exported, args: Sequence[np.ndarray[Any, Any]]) -> None:
    want = [(tuple(a.shape), np.dtype(a.dtype)) for a in exported.in_avals]
    have = [(tuple(a.shape), np.dtype(a.dtype)) for a in args]
    if want != have:
        raise ValueError(f"arguments {have} for a program of {want}")


class _Host:
    """The callbacks, one per kernel, with what they did. Keeps a callback's error: XLA would only pass its text on."""

    def __init__(self, found: list[Kernel], lazy: bool, mxu: Mxu) -> None:
        self.kernels, self.lazy, self.mxu = found, lazy, mxu
        self.split: int | None = None
        self.stats = MachineStats()
        self.failure: ArtifactError | None = None
        self.lock = threading.Lock()

    def callbacks(self) -> list[Callable[..., tuple[Array, ...]]]:
        return [self._callback(k) for k in self.kernels]

    def _callback(self, kernel: Kernel) -> Callable[..., tuple[Array, ...]]:
        def call(*operands: Any) -> tuple[Array, ...]:
            try:
                flat = [np.asarray(v) for v in operands]
                results, stats = execute(kernel, flat, lazy=self.lazy, mxu=self.mxu, split=self.split)
            except ArtifactError as error:
                self.failure = self.failure or error
                raise
            with self.lock:
                self.stats.add(stats)
            return tuple(results)

        return call


def _load_on_cpu(exported: Exported, callbacks: list[Callable[..., Any]]) -> Any:
    """The program compiled for the CPU, with kernel call i replaced by host callback i."""
    client = jax.extend.backend.get_backend("cpu")
    devices = _jax.DeviceList((client.local_devices()[0],))
    with mlir.context():
        module = mlir.module_of(exported)
        for index, op in enumerate(mlir.kernel_calls(module)):
            _replace(op, index)
        return client.compile_and_load(
            module, executable_devices=devices, compile_options=_jax.CompileOptions(), host_callbacks=callbacks
        )


def _replace(op: Any, index: int) -> None:
    u64 = ir.IntegerType.get_unsigned(64)
    attributes = {
        "call_target_name": ir.StringAttr.get(_CALLBACK_TARGET),
        "api_version": ir.IntegerAttr.get(ir.IntegerType.get_signless(32), _API_VERSION),
        "mhlo.backend_config": ir.DictAttr.get({"index": ir.IntegerAttr.get(u64, index)}),
        "backend_config": ir.StringAttr.get(""),
        "has_side_effect": ir.BoolAttr.get(False),
        **{name: op.attributes[name] for name in ("operand_layouts", "result_layouts") if name in op.attributes},
    }
    with ir.InsertionPoint(op), ir.Location.unknown():
        made = ir.Operation.create(
            mlir.CUSTOM_CALL, results=[r.type for r in op.results], operands=list(op.operands), attributes=attributes
        )
    for old, new in zip(op.results, made.results, strict=True):
        old.replace_all_uses_with(new)
    op.erase()


def _execute(loaded: Any, args: Sequence[Any]) -> list[np.ndarray[Any, Any]]:
    device = loaded.local_devices()[0]
    return [np.asarray(r) for r in loaded.execute([jax.device_put(a, device) for a in args])]

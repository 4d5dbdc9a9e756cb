"""Loads, stores, views of memory, and asynchronous copies with their semaphores."""

from __future__ import annotations

from typing import Any

import numpy as np

from aka.artifact.code import Builder, Machine, Step
from aka.artifact.errors import MachineFault, Unsupported
from aka.artifact.memory import Semaphore, cut, fresh
from aka.artifact.program import Op

Array = Any
HBM = frozenset({"any", "hbm"})


def _load(op: Op, machine: Machine) -> Step:
    shape = op.result_types[0].shape
    rank = len(op.operand_types[0].shape)
    strides = op.attributes.get("strides") or None
    if len(op.operands) > 1 + rank:
        raise Unsupported(op.name, "a mask")
    sizes = (1,) * (rank - len(shape)) + tuple(shape)
    return lambda ref, *indices: cut(ref, indices, sizes, strides).reshape(shape).copy()


def _store(op: Op, machine: Machine) -> Step:
    groups = op.segments or [1, 1, len(op.operands) - 2, 0]
    add, strides = bool(op.attributes.get("add", False)), op.attributes.get("strides") or None
    count = groups[2] if len(groups) > 2 else len(op.operands) - 2

    def store(value: Array, ref: Array, *rest: Array) -> None:
        view = cut(ref, rest[:count], value.shape, strides)
        value = view + value if add else value
        view[...] = np.where(rest[count], value, view) if len(rest) > count else value

    return store


def _load_scalar(op: Op, machine: Machine) -> Step:
    rank = len(op.operand_types[0].shape)
    return lambda ref, *indices: cut(ref, indices, (1,) * rank).reshape(())[()]


def _store_scalar(op: Op, machine: Machine) -> Step:
    rank = len(op.operand_types[1].shape)

    def store(value: Array, ref: Array, *indices: Array) -> None:
        cut(ref, indices, (1,) * rank)[...] = value

    return store


def _allocate(op: Op, machine: Machine) -> Step:
    type_ = op.result_types[0]

    def allocate(*sizes: Array) -> Array:
        made = fresh(type_)
        if made.dtype == object:
            machine.semaphores.extend(made.ravel())
        return made

    return allocate


def _slice(op: Op, machine: Machine) -> Step:
    shape = op.result_types[0].shape
    rank = len(op.operand_types[0].shape)

    def view(ref: Array, *rest: Array) -> Array:
        dynamic = iter(rest[rank:])
        return cut(ref, rest[:rank], [int(next(dynamic)) if n < 0 else n for n in shape])

    return view


def _squeeze(op: Op, machine: Machine) -> Step:
    shape = op.result_types[0].shape

    def view(ref: Array) -> Array:
        kept = [n for n in ref.shape if n != 1] if -1 in shape else shape
        return np.reshape(ref, kept, copy=False)

    return view


def _bitcast(op: Op, machine: Machine) -> Step:
    have, want = op.operand_types[0], op.result_types[0]
    if have.dtype != want.dtype or have.shape != want.shape:
        raise Unsupported(op.name, f"{have.dtype}{list(have.shape)} as {want.dtype}{list(want.shape)}")
    return lambda ref: ref


def _view(op: Op, machine: Machine) -> Step:
    return lambda ref, *rest: ref


def _enqueue(op: Op, machine: Machine) -> Step:
    if any(op.segments[4:]):
        raise Unsupported(op.name, "a remote copy")
    source_type, destination_type = op.group(op.operand_types, 0)[0], op.group(op.operand_types, 2)[0]
    reads, writes = source_type.space in HBM, destination_type.space in HBM

    def enqueue(*values: Array) -> None:
        source, destination = op.group(values, 0)[0], op.group(values, 2)[0]
        machine.stats.dmas += 1
        machine.stats.read_bytes += source.nbytes * reads
        machine.stats.written_bytes += destination.nbytes * writes
        _semaphore(op.group(values, 3)[0]).start(source, destination, machine.lazy)

    return enqueue


def _semaphore(ref: Array) -> Semaphore:
    found = ref.item()
    if not isinstance(found, Semaphore):
        raise MachineFault("a copy on something that is no semaphore")
    return found


def _wait_old(op: Op, machine: Machine) -> Step:
    """jax 0.10: groups are semaphore, source, destination."""
    return lambda *values: _semaphore(values[0]).wait(op.group(values, 2)[0].nbytes)


def _wait_new(op: Op, machine: Machine) -> Step:
    """jax 0.12: groups as in `tpu.enqueue_dma`, and an attribute that says which semaphore."""
    group = 3 if op.attributes.get("wait_target", True) else 1
    return lambda *values: _semaphore(op.group(values, group)[0]).wait(op.group(values, 2)[0].nbytes)


def _signal(op: Op, machine: Machine) -> Step:
    if any(op.segments[2:]):
        raise Unsupported(op.name, "another core or device")

    def signal(ref: Array, amount: Array) -> None:
        _semaphore(ref).count += int(amount)

    return signal


def _wait(op: Op, machine: Machine) -> Step:
    def wait(ref: Array, amount: Array) -> None:
        found = _semaphore(ref)
        if found.count < int(amount):
            raise MachineFault(f"deadlock: a semaphore at {found.count} is waited on for {int(amount)}")
        found.count -= int(amount)

    return wait


def _read(op: Op, machine: Machine) -> Step:
    return lambda ref: np.int32(_semaphore(ref).count)


TABLE: dict[str, Builder] = {
    **dict.fromkeys(("vector.load", "tpu.strided_load"), _load),
    **dict.fromkeys(("tpu.vector_store", "tpu.strided_store"), _store),
    "memref.load": _load_scalar,
    "memref.store": _store_scalar,
    **dict.fromkeys(("memref.alloca", "tpu.sem_alloc"), _allocate),
    "tpu.memref_slice": _slice,
    **dict.fromkeys(("tpu.memref_squeeze", "tpu.memref_reshape"), _squeeze),
    "tpu.memref_bitcast": _bitcast,
    "tpu.memref_cast": _view,
    "tpu.enqueue_dma": _enqueue,
    "tpu.wait_dma2": _wait_old,
    "tpu.wait_dma": _wait_new,
    "tpu.sem_signal": _signal,
    "tpu.sem_wait": _wait,
    "tpu.sem_read": _read,
}

"""Workers and the pool: answers, deaths, timeouts, forged frames, warm spares, and nothing left behind."""

from __future__ import annotations

import json
import os
import signal
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import aka
from aka.errors import WireError, WorkerStartFailed, WorkerTimeout
from aka.evaluate import proctree, wire
from aka.evaluate.pool import Limits, Pool, Worker, WorkerEnded, WorkerError


def _tree(worker: Worker) -> list[int]:
    return [worker.pid, *proctree.descendants(worker.pid)]


def _wait_until(true: Callable[[], bool], seconds: float = 10.0) -> bool:
    end = time.monotonic() + seconds
    while not (found := true()) and time.monotonic() < end:
        time.sleep(0.02)
    return found


def _all_gone(pids: list[int]) -> bool:
    return _wait_until(lambda: not any(map(proctree.is_running, pids)))


def test_arrays_and_arguments_come_back(rung: str, pool: Pool) -> None:
    arrays: list[np.ndarray[Any, Any]] = [
        np.arange(12, dtype=np.float32).reshape(3, 4),
        np.zeros((0, 2), np.int8),
        np.ones(1 << 20, np.float64),
    ]
    specs, blobs = wire.pack(arrays)
    with pool.borrow("echo") as worker:
        assert worker.call("echo", {"a": [1, None, "é"]}, [b"", b"x"], timeout_s=20) == (
            {"a": [1, None, "é"]},
            [b"", b"x"],
        )
        result, out = worker.call("double", {"arrays": specs}, blobs, timeout_s=20)
    for sent, back in zip(arrays, wire.unpack(result["arrays"], out), strict=True):
        assert np.array_equal(sent + sent, back) and back.dtype == sent.dtype


def test_an_op_that_raises_is_told_and_survived(pool: Pool) -> None:
    with pool.borrow("echo") as worker:
        with pytest.raises(WorkerError) as e:
            worker.call("raise", {"message": "no\nway"}, timeout_s=20)
        assert (e.value.kind, e.value.message) == ("ValueError", "no\nway") and "in _raise" in e.value.trace
        with pytest.raises(WorkerError) as e:
            worker.call("no such op", {}, timeout_s=20)
        assert e.value.kind == "KeyError"
        assert worker.call("echo", {"still": "here"}, timeout_s=20)[0] == {"still": "here"}


@pytest.mark.parametrize(
    ("args", "reason", "returncode"),
    [
        ({"code": 3}, "exit", 3),
        ({"code": 0, "hard": True}, "exit", 0),
        ({"signal": int(signal.SIGKILL)}, "signal", -9),
        ({"signal": int(signal.SIGABRT)}, "signal", -6),
    ],
)
def test_a_death_says_how(rung: str, pool: Pool, args: dict[str, object], reason: str, returncode: int) -> None:
    with pool.borrow("echo") as worker:
        with pytest.raises(WorkerEnded) as e:
            worker.call("exit", args, timeout_s=20)
        assert (e.value.reason, e.value.returncode) == (reason, returncode)
        with pytest.raises(WorkerEnded):
            worker.call("echo", {}, timeout_s=20)


def test_a_flood_of_text_ends_the_worker(rung: str) -> None:
    with Pool({"echo": Limits(log_bytes=1 << 16)}) as pool, pool.borrow("echo") as worker:
        worker.call("print", {"lines": 100}, timeout_s=20)
        with pytest.raises(WorkerEnded) as e:
            worker.call("print", {"lines": 10**8}, timeout_s=50)
        assert e.value.reason == "log_limit" and "xxx" in e.value.log and len(e.value.log) <= 1 << 16


def test_what_a_candidate_prints_is_no_answer(pool: Pool) -> None:
    frame = b"".join(wire.encode({"id": 1, "ok": True, "result": {}})).decode("latin-1")
    with pool.borrow("echo") as worker:
        assert worker.call("print", {"lines": 1, "text": frame}, timeout_s=20) == ({}, [])
        assert worker.call("echo", {"n": 2}, timeout_s=20)[0] == {"n": 2}


def _forged(body: dict[str, object]) -> bytes:
    return b"".join(wire.encode(body))


@pytest.mark.parametrize(
    "data",
    [
        b"\xff" * 64,
        struct.pack(">Q", 7) + b"garbage",
        _forged({"id": 1, "ok": True, "result": {"verdict": "accept"}}),
        _forged({"id": 1, "nonce": "0" * 32, "ok": True, "result": {}}),
        _forged({"id": 2, "nonce": "", "ok": True, "result": {}}),
    ],
)
def test_a_forged_frame_is_a_wire_error_and_the_end(pool: Pool, data: bytes) -> None:
    with pool.borrow("echo") as worker:
        tree = _tree(worker)
        with pytest.raises(WireError):
            worker.call("forge", {}, [data], timeout_s=20)
        assert not worker.alive and _all_gone(tree)


def test_a_reply_over_its_cap_is_a_wire_error(pool: Pool) -> None:
    with pool.borrow("echo") as worker, pytest.raises(WireError, match="over 1000"):
        worker.call("echo", {}, [bytes(5000)], timeout_s=20, reply_bytes=1000)


def test_a_timeout_kills_the_whole_tree(rung: str, pool: Pool) -> None:
    with pool.borrow("echo") as worker:
        trees: list[int] = []
        watcher = threading.Timer(1.0, lambda: trees.extend(_tree(worker)))
        watcher.start()
        with pytest.raises(WorkerTimeout):
            worker.call("fork", {"count": 12, "hang": True}, timeout_s=2.0)
        watcher.join()
        assert len(trees) > 8 and _all_gone(trees)


def test_the_wall_time_of_a_role_cuts_every_timeout() -> None:
    with Pool({"echo": Limits(wall_s=0.5)}) as pool, pool.borrow("echo") as worker, pytest.raises(WorkerTimeout):
        worker.call("sleep", {"seconds": 30}, timeout_s=30)


def test_a_detached_swarm_does_not_outlive_its_worker(rung: str, pool: Pool) -> None:
    with pool.borrow("echo") as worker:
        assert worker.call("fork", {"count": 30}, timeout_s=30)[0]["started"] == 30
        tree = _tree(worker)
        assert len(tree) > 30
    assert _all_gone(tree)


def test_a_swarm_does_not_outlive_a_worker_that_exits_by_itself(rung: str, pool: Pool) -> None:
    with pool.borrow("echo") as worker:
        assert worker.call("fork", {"count": 10}, timeout_s=30)[0]["started"] == 10
        tree = _tree(worker)
        assert len(tree) > 10
        with pytest.raises(WorkerEnded):
            worker.call("exit", {"code": 0, "hard": True}, timeout_s=20)
    assert _all_gone(tree)


def test_two_threads_work_side_by_side_and_one_can_be_killed_from_outside(rung: str, pool: Pool) -> None:
    with ThreadPoolExecutor(1) as threads, pool.borrow("echo") as slow, pool.borrow("echo") as quick:
        waiting = threads.submit(slow.call, "sleep", {"seconds": 60}, timeout_s=60)
        for n in range(20):
            assert quick.call("echo", {"n": n}, timeout_s=20)[0] == {"n": n}
        assert not waiting.done()
        slow.kill()
        with pytest.raises(WorkerEnded):
            waiting.result(timeout=20)


def test_one_worker_serves_many_threads_one_at_a_time(pool: Pool) -> None:
    worker = pool.keep("echo")
    with ThreadPoolExecutor(4) as threads:
        calls = [threads.submit(worker.call, "echo", {"n": n}, timeout_s=30) for n in range(40)]
        assert [c.result()[0]["n"] for c in calls] == list(range(40))


def test_every_taken_worker_is_fresh_and_the_next_one_waits_warm(rung: str, pool: Pool) -> None:
    seconds, pids = [], set()
    pool.prepare("echo")
    for _ in range(4):
        time.sleep(0.6)
        began = time.perf_counter()
        with pool.borrow("echo") as worker:
            seconds.append(time.perf_counter() - began)
            pids.add(worker.pid)
    assert len(pids) == 4 and min(seconds) < 0.02


def test_a_kept_worker_is_reused_until_it_dies(rung: str, pool: Pool) -> None:
    first = pool.keep("echo")
    first.call("echo", {}, timeout_s=20)
    assert pool.keep("echo") is first
    with pytest.raises(WorkerEnded):
        first.call("exit", {"code": 1}, timeout_s=20)
    second = pool.keep("echo")
    assert second.pid != first.pid and second.call("echo", {"n": 1}, timeout_s=20)[0] == {"n": 1}


def test_a_closed_pool_leaves_nothing_and_gives_nothing(rung: str) -> None:
    others = set(proctree.descendants(os.getpid()))  # another test file's workers may still live
    pool = Pool()
    trees = _tree(pool.take("echo")) + _tree(pool.keep("echo")) + proctree.descendants(os.getpid())
    pool.close()
    assert _all_gone([pid for pid in trees if pid not in others])
    with pytest.raises(WorkerStartFailed):
        pool.take("echo")
    pool.close()


PARENT = """
import json, os, signal, time
from aka.evaluate import proctree
from aka.evaluate.pool import Pool
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs start with it ignored
pool = Pool()
pool.take("echo").call("fork", {"count": 5}, timeout_s=30)
home = pool.keep("echo").call("environment", {}, timeout_s=30)[0]["own"]["HOME"]
time.sleep(0.3)
print(json.dumps([home, proctree.descendants(os.getpid())]), flush=True)
pool.keep("echo").call("sleep", {"seconds": 60}, timeout_s=60)
"""


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_nothing_outlives_the_parent(rung: str, how: signal.Signals) -> None:
    env = {**os.environ, "PYTHONPATH": str(Path(aka.__file__).parent.parent)}
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT], env=env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    assert parent.stdout
    with parent.stdout:
        home, pids = json.loads(parent.stdout.readline())
        assert len(pids) > 6 and all(map(proctree.is_running, pids))
        parent.send_signal(how)
        assert parent.wait(20) == -how
    assert _all_gone(pids)
    assert home == "/tmp" or not Path(home).exists()


def test_workers_do_not_share_our_terminal(rung: str, pool: Pool) -> None:
    with pool.borrow("echo") as worker:
        assert all(os.getsid(pid) != os.getsid(0) for pid in _tree(worker))

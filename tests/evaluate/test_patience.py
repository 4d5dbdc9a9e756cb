"""Time limits of a judgement, and work beside it that never outlives it."""

from __future__ import annotations

import threading
import time

import pytest

from aka.evaluate.patience import Beside, Expired, Patience, Unwanted, load_per_core
from aka.evaluate.pool import Pool, WorkerEnded


def test_a_cap_is_cut_to_what_is_left() -> None:
    assert Patience(None, lambda: 1.0).cut(120.0) == 120.0
    assert Patience(1000.0, lambda: 1.0).cut(120.0) == 120.0
    assert 0 < Patience(5.0, lambda: 1.0).cut(120.0) <= 5.0


def test_a_crowded_machine_gets_more_time() -> None:
    assert Patience(10.0, lambda: 4.0).cut(120.0) > 35.0
    assert Patience(None, lambda: 4.0).cut(10.0) == Patience(1000.0, lambda: 4.0).cut(10.0) == 40.0
    assert 10.0 >= Patience(10.0, lambda: 1.0).cut(120.0) > 5.0
    assert load_per_core() >= 1.0


def test_time_that_is_spared_does_not_count() -> None:
    patience = Patience(0.2, lambda: 1.0)
    with patience.spared():
        time.sleep(0.3)
    assert patience.cut(10.0) > 0
    time.sleep(0.3)
    with pytest.raises(Expired):
        patience.cut(10.0)


def test_no_time_left_and_nothing_wanted_are_told_apart() -> None:
    with pytest.raises(Expired, match="not judged within 0 s"):
        Patience(0.0).cut(1.0)
    stopped = Patience()
    stopped.stop()
    with pytest.raises(Unwanted):
        stopped.cut(1.0)


def test_work_beside_hands_on_its_result_or_its_error() -> None:
    with Beside(lambda: threading.get_ident(), lambda: None) as work:
        assert work.result() != threading.get_ident()
    with pytest.raises(ZeroDivisionError), Beside(lambda: 1 // 0, lambda: None) as work:
        work.result()


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError, None])
def test_leaving_the_block_ends_the_work(error: type[BaseException] | None) -> None:
    """A worker that would sleep for a minute dies with the block, and its successor is there for the next caller."""
    with Pool() as pool:
        first = pool.keep("echo")
        seen: list[BaseException] = []
        asked = threading.Event()

        def work() -> None:
            asked.set()
            try:
                first.call("sleep", {"seconds": 60}, timeout_s=90)
            except WorkerEnded as ended:
                seen.append(ended)

        begun = time.monotonic()
        try:
            with Beside(work, lambda: pool.renew("echo")):
                assert asked.wait(30)
                if error is not None:
                    raise error
        except (KeyboardInterrupt, ValueError):
            assert error is not None
        assert time.monotonic() - begun < 30 and len(seen) == 1
        assert not first.alive
        assert pool.keep("echo") is not first
        assert pool.keep("echo").call("echo", {"a": 1}, timeout_s=30)[0] == {"a": 1}


def test_renewing_a_role_that_was_never_kept_only_prepares_it() -> None:
    with Pool() as pool:
        pool.renew("echo")
        assert pool.keep("echo").alive

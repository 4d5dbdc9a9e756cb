"""Shared by the tests of the judge's processes: one rung of the sandbox at a time, a pool that is always closed."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from aka.errors import BackendUnavailable
from aka.evaluate import sandbox
from aka.evaluate.pool import Pool


def force(rung: str, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("AKA_SANDBOX", rung)
    try:
        return sandbox.probe().name
    except BackendUnavailable as e:
        pytest.skip(str(e))


@pytest.fixture(params=["bubblewrap", "landlock", "rlimits"])
def rung(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    return force(request.param, monkeypatch)


@pytest.fixture(params=["bubblewrap", "landlock"])
def walled(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    return force(request.param, monkeypatch)


@pytest.fixture
def bubblewrap(monkeypatch: pytest.MonkeyPatch) -> str:
    return force("bubblewrap", monkeypatch)


@pytest.fixture
def landlock(monkeypatch: pytest.MonkeyPatch) -> str:
    return force("landlock", monkeypatch)


@pytest.fixture
def pool() -> Iterator[Pool]:
    with Pool() as p:
        yield p

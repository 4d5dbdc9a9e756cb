"""What a worker can and cannot do behind each rung, tried by really doing it through the echo role."""

from __future__ import annotations

import errno
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import aka
from aka.errors import BackendUnavailable, WorkerStartFailed
from aka.evaluate import sandbox, seccomp
from aka.evaluate.pool import Limits, Worker, WorkerEnded, WorkerError

MIB = 1 << 20
Launch = Callable[..., Worker]
TPU_ENV = {
    "JAX_PLATFORMS": "cpu",
    "TPU_SKIP_MDS_QUERY": "1",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    "TPU_LOG_DIR": "disabled",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_ACCELERATOR_TYPE": "v5litepod-4",
    "TF_CPP_MIN_LOG_LEVEL": "3",
    "LIBTPU_INIT_ARGS": "--xla_jf_dump_static_llo_profile_to={tmp}/llo",
}


@pytest.fixture
def launch() -> Iterator[Launch]:
    workers: list[Worker] = []

    def one(limits: Limits | None = None, env: dict[str, str] | None = None) -> Worker:
        workers.append(sandbox.launch("echo", limits or Limits(), env or {}))
        return workers[-1]

    yield one
    for worker in workers:
        worker.kill()


@pytest.fixture
def port() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def _refused(worker: Worker, op: str, **args: object) -> str:
    with pytest.raises(WorkerError) as e:
        worker.call(op, args, timeout_s=20)
    return e.value.kind


def test_the_network_is_out_of_reach(walled: str, launch: Launch, port: int) -> None:
    worker = launch()
    assert _refused(worker, "connect", host="127.0.0.1", port=port) == "PermissionError"
    assert _refused(worker, "connect", host="192.0.2.1", port=80) == "PermissionError"


def test_the_lower_rung_says_that_it_loses_the_network_and_does(
    monkeypatch: pytest.MonkeyPatch, launch: Launch, port: int
) -> None:
    monkeypatch.setenv("AKA_SANDBOX", "rlimits")
    assert "network" in sandbox.probe().lost
    assert "NOT SANDBOXED" in _python(PROBE, AKA_SANDBOX="rlimits").stderr
    assert launch().call("connect", {"host": "127.0.0.1", "port": port}, timeout_s=20) == ({}, [])


def test_files_of_the_user_cannot_be_read(walled: str, launch: Launch, tmp_path: Path) -> None:
    secret = tmp_path / "key"
    secret.write_text("secret")
    worker = launch()
    kind = "FileNotFoundError" if walled == "bubblewrap" else "PermissionError"
    assert _refused(worker, "read_path", path=str(secret)) == kind
    assert _refused(worker, "read_path", path="/etc/passwd") == kind


def test_folders_above_what_is_needed_show_no_more_than_the_way(walled: str, launch: Launch) -> None:
    worker, tree = launch(), Path(aka.__file__).parent.parent
    if walled == "bubblewrap":
        names = worker.call("read_path", {"path": str(tree)}, timeout_s=20)[0]["names"]
        assert "aka" in names and "tests" not in names and "pyproject.toml" not in names
    else:
        assert _refused(worker, "read_path", path=str(tree)) == "PermissionError"


def test_home_shows_at_most_the_way_to_the_interpreter(walled: str, launch: Launch) -> None:
    home = Path.home()
    needed = [Path(p) for p in (sys.prefix, sys.base_prefix, aka.__file__)]
    allowed = {p.relative_to(home).parts[0] for p in needed if p.is_relative_to(home)}
    try:
        names = launch().call("read_path", {"path": str(home)}, timeout_s=20)[0]["names"]
    except WorkerError as e:
        names = []
        assert e.kind in ("FileNotFoundError", "PermissionError")
    assert set(names) <= allowed


@pytest.mark.parametrize("folder", ["/", "/usr", "/etc", "/dev", "/sys", sys.prefix, str(Path(aka.__file__).parent)])
def test_nothing_but_tmp_can_be_written(walled: str, launch: Launch, folder: str) -> None:
    assert _refused(launch(), "write_file", path=f"{folder}/planted", mib=1) in ("OSError", "PermissionError")
    assert not Path(folder, "planted").exists()


def test_tmp_is_private_and_sized(bubblewrap: str, launch: Launch) -> None:
    worker = launch(Limits(tmp_bytes=8 * MIB))
    assert worker.call("write_file", {"path": "/tmp/planted", "mib": 4}, timeout_s=20)[0] == {"bytes": 4 * MIB}
    assert not Path("/tmp/planted").exists()
    with pytest.raises(WorkerError) as e:
        worker.call("write_file", {"path": "/tmp/more", "mib": 9}, timeout_s=20)
    assert f"Errno {errno.ENOSPC}" in e.value.message


def test_a_file_can_grow_to_its_limit_only(rung: str, launch: Launch) -> None:
    worker = launch(Limits(file_bytes=2 * MIB))
    home = worker.call("environment", {}, timeout_s=20)[0]["own"]["HOME"]
    with pytest.raises(WorkerError) as e:
        worker.call("write_file", {"path": f"{home}/big", "mib": 9}, timeout_s=20)
    assert f"Errno {errno.EFBIG}" in e.value.message
    worker.kill()
    assert not Path(home, "big").exists()


def test_only_its_own_processes_and_no_privileges(walled: str, launch: Launch) -> None:
    seen, _ = launch().call("environment", {}, timeout_s=20)
    assert seen["uid"] != 0
    assert set(seen["seen"]) <= ({str(n) for n in range(1, 20)} if walled == "bubblewrap" else {str(seen["pid"])})
    status = dict(line.split(":\t", 1) for line in seen["status"].splitlines() if ":\t" in line)
    assert status["NoNewPrivs"] == "1"
    assert status["Seccomp"] == "2"
    kept = 1 << 2 if walled == "landlock" else 0  # CAP_DAC_READ_SEARCH, for an interpreter in root's own folder
    assert {int(status[caps], 16) for caps in ("CapEff", "CapPrm", "CapInh", "CapAmb")} <= {0, kept}


SHOW_ENVIRONMENT = """
import json
from aka.evaluate import sandbox, seccomp
worker = sandbox.launch("echo", sandbox.Limits(), {"ROLE_NEEDS": "this"})
print(json.dumps(worker.call("environment", {}, timeout_s=20)[0]))
worker.kill()
"""


def _python(script: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "PYTHONPATH": str(Path(aka.__file__).parent.parent), **env},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_a_secret_of_the_parent_is_nowhere_to_be_seen(rung: str) -> None:
    done = _python(SHOW_ENVIRONMENT, AKA_SANDBOX=rung, PLANTED_API_KEY="canary-4711")
    seen = json.loads(done.stdout)
    assert seen["own"]["ROLE_NEEDS"] == "this"
    assert "canary-4711" not in json.dumps(seen["own"]) and "AKA_SANDBOX" not in seen["own"]
    if rung != "rlimits":
        assert "canary-4711" not in done.stdout


def test_the_parent_cannot_be_looked_into_or_signalled(walled: str, launch: Launch) -> None:
    worker = launch()
    kind = "FileNotFoundError" if walled == "bubblewrap" else "PermissionError"
    assert _refused(worker, "read_path", path=f"/proc/{os.getpid()}/environ") == kind
    numbers = seccomp.call_numbers(os.uname().machine)
    calls = [(numbers["kill"], os.getpid(), 0), (numbers["tgkill"], os.getpid(), os.getpid(), 0)]
    found = worker.call("system_calls", {"calls": calls}, timeout_s=20)[0]["errno"]
    assert set(found) == {errno.ESRCH if walled == "bubblewrap" else errno.EPERM}


def test_every_denied_call_is_denied(walled: str, launch: Launch) -> None:
    numbers = seccomp.call_numbers(os.uname().machine)
    plain = [r for r in seccomp.rules(alone=walled == "bubblewrap") if r.arg is None and r.call in numbers]
    calls = [(numbers[rule.call],) + (0,) * 6 for rule in plain]
    found = launch().call("system_calls", {"calls": calls}, timeout_s=20)[0]["errno"]
    assert len(plain) > 60 and found == [rule.error for rule in plain]


def test_calls_are_denied_by_what_they_are_asked_for(walled: str, launch: Launch) -> None:
    numbers = seccomp.call_numbers(os.uname().machine)
    refused = [
        (numbers["clone"], 0x10000000 | 17, 0, 0, 0, 0),  # a namespace of users
        (numbers["socket"], socket.AF_INET, socket.SOCK_STREAM, 0),
        (numbers["socket"], 16, socket.SOCK_RAW, 0),  # netlink
        (numbers["prlimit64"], 1, 0, 0, 0),
        (numbers["fcntl"], 0, 8, 1),  # F_SETOWN
        (numbers["ioctl"], 0, 0x5412, 0),  # TIOCSTI
    ]
    allowed = [(numbers["prlimit64"], 0, 0, 0, 0), (numbers["fcntl"], 0, 1, 0)]
    streams = launch().call("system_calls", {"calls": refused + allowed}, timeout_s=20)[0]["errno"]
    assert streams == [errno.EPERM] * len(refused) + [0] * len(allowed)


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="only x86_64 has a second set of numbers")
def test_a_call_by_an_x32_number_is_the_end(walled: str, launch: Launch) -> None:
    with pytest.raises(WorkerEnded) as e:
        launch().call("system_calls", {"calls": [(0x40000000 | 39,)]}, timeout_s=20)
    assert e.value.returncode == -signal.SIGSYS


def test_processes_are_counted(walled: str, launch: Launch) -> None:
    count = 400 + 32 * (os.cpu_count() or 1)
    if os.getuid() != 0:
        count += 4000
    started = launch().call("fork", {"count": count}, timeout_s=60)[0]["started"]
    assert 10 < started < count


def test_memory_beyond_the_limit_ends_the_worker(rung: str, launch: Launch) -> None:
    with pytest.raises(WorkerEnded) as e:
        launch(Limits(memory_bytes=256 * MIB)).call("allocate", {"mib": 1500, "seconds": 30}, timeout_s=60)
    assert e.value.reason == "resource_limit" and "256 MiB" in str(e.value)


def test_address_space_beyond_reason_is_a_memory_error(rung: str, launch: Launch) -> None:
    worker = launch(Limits(memory_bytes=256 * MIB))
    assert _refused(worker, "reserve", gib=64) == "MemoryError"
    assert worker.alive


def test_processor_time_is_per_call_and_its_end_is_a_resource_limit(rung: str, launch: Launch) -> None:
    worker = launch(Limits(cpu_s=1))
    for _ in range(2):
        worker.call("spin", {"seconds": 0.7}, timeout_s=30)
    with pytest.raises(WorkerEnded) as e:
        worker.call("spin", {"seconds": 60}, timeout_s=50)
    assert e.value.reason == "resource_limit"


@pytest.mark.skipif(sys.platform != "linux", reason="libtpu is built for Linux only")
def test_libtpu_compiles_ahead_of_time_behind_the_wall(walled: str, launch: Launch) -> None:
    pytest.importorskip("libtpu", reason="libtpu is not installed")
    worker = launch(Limits(tmp_bytes=2 << 30), TPU_ENV)
    done, _ = worker.call("compile", {"topology": "v5e:2x2", "n": 256}, timeout_s=120)
    assert done == {"device": "TPU v5 lite", "flops": 2.0 * 256**3, "on_cpu": 256.0}
    home = worker.call("environment", {}, timeout_s=20)[0]["own"]["HOME"]
    assert worker.call("read_path", {"path": f"{home}/llo"}, timeout_s=20)[0]["names"]


def test_an_unknown_rung_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AKA_SANDBOX", "castle")
    with pytest.raises(BackendUnavailable, match="castle"):
        sandbox.probe()


def test_an_unknown_role_does_not_start(rung: str) -> None:
    worker = sandbox.launch("nobody", Limits(), {})
    with pytest.raises(WorkerStartFailed, match="invalid choice"):
        worker.ready(timeout_s=20)
    assert not worker.alive


PROBE = "from aka.evaluate import sandbox; r = sandbox.probe(); print(r.name, '|', r.note, '|', len(r.lost))"


def test_without_bubblewrap_landlock_is_taken_loudly(landlock: str, tmp_path: Path) -> None:
    done = _python(PROBE, PATH=str(tmp_path), AKA_SANDBOX="")
    assert done.stdout.startswith("landlock |") and not done.stdout.endswith("| 0\n")
    assert "sandbox is landlock" in done.stderr and "not installed" in done.stderr
    forced = _python(PROBE, PATH=str(tmp_path), AKA_SANDBOX="bubblewrap")
    assert (
        forced.returncode == 1 and "BackendUnavailable" in forced.stderr and "apt install bubblewrap" in forced.stderr
    )


@pytest.mark.parametrize(
    ("complaint", "fix"),
    [
        ("bwrap: setting up uid map: Permission denied", "AppArmor"),
        ("bwrap: loopback: Failed RTM_NEWADDR: Operation not permitted", "AppArmor"),
        ("bwrap: Unknown option --size", "0.7 or newer"),
    ],
)
def test_a_bubblewrap_that_fails_names_its_fix(tmp_path: Path, complaint: str, fix: str) -> None:
    stand_in = tmp_path / "bwrap"
    stand_in.write_text(f"#!/bin/sh\necho '{complaint}' >&2\nexit 1\n")
    stand_in.chmod(0o755)
    done = _python(PROBE, PATH=f"{tmp_path}:/usr/bin:/bin", AKA_SANDBOX="bubblewrap")
    assert "BackendUnavailable" in done.stderr and complaint in done.stderr and fix in done.stderr


def test_a_bubblewrap_that_runs_without_isolating_is_not_believed(tmp_path: Path) -> None:
    stand_in = tmp_path / "bwrap"
    stand_in.write_text('#!/bin/sh\nwhile [ "$1" != -P ]; do last=$1; shift; done\nexec "$last" "$@"\n')
    stand_in.chmod(0o755)
    done = _python(PROBE, PATH=f"{tmp_path}:/usr/bin:/bin", AKA_SANDBOX="bubblewrap")
    assert "did not isolate" in done.stderr

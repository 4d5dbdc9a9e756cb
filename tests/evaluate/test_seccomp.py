"""The filter of system calls: its numbers against the kernel's headers, its answers by running under it."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from aka.errors import BackendUnavailable
from aka.evaluate import seccomp

HEADERS = {
    "x86_64": ("/usr/include/x86_64-linux-gnu/asm/unistd_64.h", "/usr/include/asm/unistd_64.h"),
    "aarch64": ("/usr/include/asm-generic/unistd.h",),
}


@pytest.mark.parametrize("machine", list(HEADERS))
def test_the_numbers_are_those_of_the_headers(machine: str) -> None:
    header = next((Path(p) for p in HEADERS[machine] if Path(p).exists()), None)
    if header is None:
        pytest.skip("the kernel's headers are not installed")
    told = {name: int(n) for name, n in re.findall(r"#define\s+__NR(?:3264)?_(\w+)\s+(\d+)", header.read_text())}
    ours = seccomp.call_numbers(machine)
    assert len(ours.keys() & told.keys()) > 60
    assert {name: ours[name] for name in ours if name in told} == {n: told[n] for n in ours if n in told}


@pytest.mark.parametrize("machine", list(HEADERS))
@pytest.mark.parametrize("alone", [True, False])
def test_no_jump_leaves_the_program(machine: str, alone: bool) -> None:
    code = seccomp.program(alone=alone, pid=7, machine=machine)
    length = len(code) // 8
    assert len(code) % 8 == 0 and length <= 4096
    for place in range(length):
        operation, yes, no = code[8 * place], code[8 * place + 2], code[8 * place + 3]
        assert operation in (0x20, 0x15, 0x35, 0x54, 0x06) and place + 1 + max(yes, no) <= length - (operation != 6)


def test_every_rule_has_a_number_somewhere() -> None:
    known = seccomp.call_numbers("x86_64") | seccomp.call_numbers("aarch64")
    assert {rule.call for alone in (True, False) for rule in seccomp.rules(alone=alone, pid=1)} <= known.keys()


def test_a_machine_without_a_list_is_refused() -> None:
    with pytest.raises(BackendUnavailable, match="riscv64"):
        seccomp.program(alone=True, machine="riscv64")


UNDER_IT = """
import ctypes, os, signal, subprocess, sys, threading
from aka.evaluate import seccomp
ctypes.CDLL(None).prctl(38, 1, 0, 0, 0)
seccomp.install(seccomp.program(alone=False, pid=os.getpid()))
for pid in (os.getppid(), 0, -1):
    try:
        os.kill(pid, 0)
    except PermissionError:
        print("refused", pid <= 0)
os.kill(os.getpid(), 0)
threading.Thread(target=print, args=("threads",)).start()
subprocess.run([sys.executable, "-c", "print('processes', flush=True)"], check=True)
os.abort()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="seccomp is Linux's")
def test_signals_go_to_the_process_itself_only() -> None:
    done = subprocess.run([sys.executable, "-c", UNDER_IT], capture_output=True, text=True, timeout=60)
    assert done.stdout.split("\n")[:3] == ["refused False", "refused True", "refused True"], done.stderr
    assert "threads" in done.stdout and "processes" in done.stdout and done.returncode == -6

"""The system calls that a worker does not get: a small assembler for seccomp's filter programs, and the list.

Everything is allowed but what the list names; a denied call fails with EPERM, and `clone3`, whose flags lie in memory
where no filter can look, with ENOSYS, on which libc falls back to `clone`. Calls of another architecture (32-bit or x32
numbers) end the process. The numbers are the kernel's: `asm/unistd_64.h` for x86_64, `asm-generic/unistd.h` for aarch64
(tests compare them where those headers are installed). Form of the program: linux/filter.h, linux/seccomp.h.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
from dataclasses import dataclass

from aka.errors import BackendUnavailable, WorkerStartFailed

_LOAD, _IF_EQUAL, _IF_AT_LEAST, _AND, _RETURN = 0x20, 0x15, 0x35, 0x54, 0x06  # linux/bpf_common.h
_NUMBER, _ARCH, _ARGS = 0, 4, 16  # offsets in struct seccomp_data; each argument has 8 bytes, its low word first
_KILL, _FAIL, _ALLOW = 0x80000000, 0x00050000, 0x7FFF0000  # SECCOMP_RET_*
_AUDIT = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}  # linux/audit.h
_COLUMN = {"x86_64": 0, "aarch64": 1}
_SET_SECCOMP, _MODE_FILTER = 22, 2  # prctl(2)
_X32 = 0x40000000  # the bit that marks x32 numbers
_WHOLE = 0xFFFFFFFF

# Name, number on x86_64, number on aarch64 ("-": there is none), by what the calls would reach.
_DENIED = {
    "other processes": """ptrace 101 117 process_vm_readv 310 270 process_vm_writev 311 271 kcmp 312 272
        pidfd_getfd 438 438 process_madvise 440 440 process_mrelease 448 448""",
    "priorities": """setpriority 141 140 ioprio_set 251 30 sched_setattr 314 274 sched_setparam 142 118
        sched_setscheduler 144 119 migrate_pages 256 238 move_pages 279 239""",
    "parts of the kernel that are rich in bugs": """bpf 321 280 perf_event_open 298 241 userfaultfd 323 282
        io_uring_setup 425 425 io_uring_enter 426 426 io_uring_register 427 427 modify_ldt 154 - uselib 134 -
        lookup_dcookie 212 18 nfsservctl 180 42 personality 135 92 vmsplice 278 75""",
    "keys": "keyctl 250 219 add_key 248 217 request_key 249 218",
    "mounts and namespaces": """mount 165 40 umount2 166 39 pivot_root 155 41 chroot 161 51 open_tree 428 428
        move_mount 429 429 fsopen 430 430 fsconfig 431 431 fsmount 432 432 fspick 433 433 mount_setattr 442 442
        open_tree_attr 467 467 unshare 272 97 setns 308 268""",
    "the machine": """swapon 167 224 swapoff 168 225 quotactl 179 60 quotactl_fd 443 443 acct 163 89 reboot 169 142
        kexec_load 246 104 kexec_file_load 320 294 init_module 175 105 finit_module 313 273 delete_module 176 106
        create_module 174 - iopl 172 - ioperm 173 - syslog 103 116 vhangup 153 58 sethostname 170 161
        setdomainname 171 162 settimeofday 164 170 clock_settime 227 112 clock_adjtime 305 266 adjtimex 159 171""",
    "files past their paths": """open_by_handle_at 304 265 name_to_handle_at 303 264 fanotify_init 300 262
        fanotify_mark 301 263 inotify_init 253 - inotify_init1 294 26 inotify_add_watch 254 27""",
    "memory that outlives the process or that no limit counts": """shmget 29 194 msgget 68 186 semget 64 190
        mq_open 240 180 mq_unlink 241 181 memfd_create 319 279 memfd_secret 447 447""",
}
# Landlock does not watch over these: without namespaces they reach sockets and the attributes of the user's files.
_DENIED_BESIDE_OTHERS = {
    "sockets": "socket 41 198 connect 42 203 bind 49 200 listen 50 201",
    "attributes of files": """chmod 90 - fchmod 91 52 fchmodat 268 53 fchmodat2 452 452 chown 92 - fchown 93 55
        lchown 94 - fchownat 260 54 setxattr 188 5 lsetxattr 189 6 fsetxattr 190 7 setxattrat 463 463
        removexattr 197 14 lremovexattr 198 15 fremovexattr 199 16 removexattrat 466 466 file_setattr 469 469
        utime 132 - utimes 235 - futimesat 261 - utimensat 280 88""",
}
_TESTED = """clone 56 220 clone3 435 435 socket 41 198 socketpair 53 199 prlimit64 302 261 sched_setaffinity 203 122
    fcntl 72 25 ioctl 16 29 kill 62 129 tgkill 234 131"""
_SIGNALS = "tkill 200 130 rt_sigqueueinfo 129 138 rt_tgsigqueueinfo 297 240 pidfd_send_signal 424 424"
_NEW_NAMESPACES = 0x7E020000  # CLONE_NEW{NS,CGROUP,UTS,IPC,USER,PID,NET}, linux/sched.h
_AF_UNIX, _SOCK_STREAM = 1, 1
_F_SETOWN, _F_SETSIG, _F_SETOWN_EX = 8, 10, 15  # they aim signals at other processes
_IOCTLS = (0x5412, 0x541C, 0x8901, 0x8902, 0x40086602)  # TIOCSTI, TIOCLINUX, FIOSETOWN, SIOCSPGRP, FS_IOC_SETFLAGS


@dataclass(frozen=True)
class Rule:
    """The call fails with `error`; with an `arg` only where (that argument & `mask`) == `value`, or != it."""

    call: str
    error: int = errno.EPERM
    arg: int | None = None
    value: int = 0
    mask: int = _WHOLE
    equal: bool = True


def program(*, alone: bool, pid: int | None = None, machine: str | None = None) -> bytes:
    """The filter for a worker, as an array of `struct sock_filter`.

    `alone`: behind namespaces of its own; else no socket can be made, and no file's attributes changed, either. With
    `pid`, signals go to that process only. `machine` is this one if not given. Raises BackendUnavailable for one that
    is neither x86_64 nor aarch64.
    """
    machine = machine or os.uname().machine
    if machine not in _AUDIT:
        raise BackendUnavailable(f"there is no list of system calls for {machine}")
    numbers = call_numbers(machine)
    body = b"".join(_block(rule, numbers[rule.call]) for rule in rules(alone=alone, pid=pid) if rule.call in numbers)
    foreign = _op(_IF_AT_LEAST, _X32, 0, 1) + _op(_RETURN, _KILL) if machine == "x86_64" else b""
    head = _op(_LOAD, _ARCH) + _op(_IF_EQUAL, _AUDIT[machine], 1, 0) + _op(_RETURN, _KILL) + _op(_LOAD, _NUMBER)
    return head + foreign + body + _op(_RETURN, _ALLOW)


def install(code: bytes) -> None:
    """Put this thread, and all that it starts from now on, under a filter. PR_SET_NO_NEW_PRIVS must have been set."""

    class Program(ctypes.Structure):
        _fields_ = (("length", ctypes.c_ushort), ("code", ctypes.c_char_p))

    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_SET_SECCOMP, _MODE_FILTER, ctypes.byref(Program(len(code) // 8, code)), 0, 0) < 0:
        raise WorkerStartFailed(f"the kernel refuses the filter of system calls: {os.strerror(ctypes.get_errno())}")


def rules(*, alone: bool, pid: int | None = None) -> list[Rule]:
    """What `program` puts into the filter, in its order."""
    made = [Rule(call) for calls in _DENIED.values() for call, _, _ in _triples(calls)]
    made += [Rule("clone3", errno.ENOSYS), Rule("clone", arg=0, mask=_NEW_NAMESPACES, equal=False)]
    made += [Rule("prlimit64", arg=0, equal=False), Rule("sched_setaffinity", arg=0, equal=False)]  # 0: itself
    made += [Rule("fcntl", arg=1, value=command) for command in (_F_SETOWN, _F_SETSIG, _F_SETOWN_EX)]
    made += [Rule("ioctl", arg=1, value=command) for command in _IOCTLS]
    if alone:
        made.append(Rule("socket", arg=0, value=_AF_UNIX, equal=False))
    else:
        made += [Rule(call) for calls in _DENIED_BESIDE_OTHERS.values() for call, _, _ in _triples(calls)]
        # A datagram pair can be turned to a socket of somebody else's; a stream stays with its peer.
        made.append(Rule("socketpair", arg=1, value=_SOCK_STREAM, mask=0xF, equal=False))
    if pid is not None:
        made += [Rule(call) for call, _, _ in _triples(_SIGNALS)]
        made += [Rule(call, arg=0, value=pid, equal=False) for call in ("kill", "tgkill")]
    return made


def call_numbers(machine: str) -> dict[str, int]:
    """The number of each call that a rule may name, where the machine has it."""
    texts = [*_DENIED.values(), *_DENIED_BESIDE_OTHERS.values(), _TESTED, _SIGNALS]
    found = {name: both[_COLUMN[machine]] for text in texts for name, *both in _triples(text)}
    return {name: int(number) for name, number in found.items() if number != "-"}


def _block(rule: Rule, number: int) -> bytes:
    """The accumulator holds the call's number before and after."""
    fail = _op(_RETURN, _FAIL | rule.error)
    if rule.arg is None:
        return _op(_IF_EQUAL, number, 0, 1) + fail
    test = _op(_IF_EQUAL, rule.value, *((0, 1) if rule.equal else (1, 0)))
    inner = _op(_LOAD, _ARGS + 8 * rule.arg) + _op(_AND, rule.mask) + test + fail + _op(_LOAD, _NUMBER)
    return _op(_IF_EQUAL, number, 0, len(inner) // 8) + inner


def _op(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("=HBBI", code, if_true, if_false, value)


def _triples(text: str) -> list[tuple[str, str, str]]:
    words = text.split()
    return list(zip(words[::3], words[1::3], words[2::3], strict=True))

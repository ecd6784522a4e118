"""The seal under redirected writes: Linux's Landlock, which any process may put on itself and never take off.

It refuses, it does not redirect: what escapes the redirection in Python (C++ writers, programs the script starts)
fails instead of reaching the user's files. It knows nothing of modes, owners and times; before ABI 3 (Linux 6.2)
nothing of truncate(2), and before ABI 2 (5.19) it refuses to move a file from one folder to another."""

from __future__ import annotations

import ctypes
import os
import struct
import sys
from collections.abc import Sequence

from hotlap.measure import scratch

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446  # the same on x86_64 and aarch64
_VERSION, _PATH_BENEATH = 1, 1
_PR_SET_NO_NEW_PRIVS = 38
_WRITE_FILE = 1 << 1
_CHANGE = sum(1 << bit for bit in range(4, 13))  # remove and make entries of any kind
_REFER, _TRUNCATE = 1 << 13, 1 << 14
# Device ioctls stay unhandled, so allowed everywhere: every CUDA call is one.


def _syscall(number: int, *arguments: object) -> int:
    result: int = ctypes.CDLL(None, use_errno=True).syscall(ctypes.c_long(number), *arguments)
    return result


def abi() -> int:
    """Landlock's version here; 0 where there is none, or it is switched off."""
    if not sys.platform.startswith("linux") or os.uname().machine not in ("x86_64", "aarch64"):
        return 0
    return max(0, _syscall(_CREATE_RULESET, None, ctypes.c_size_t(0), ctypes.c_uint32(_VERSION)))


def seal(writable: Sequence[str]) -> bool:
    """From here on this process and all it starts can write only beneath these folders and to devices; reading stays
    free. False, and nothing changed, where the kernel cannot."""
    version = abi()
    if not version:
        return False
    to_files = _WRITE_FILE | (_TRUNCATE if version >= 3 else 0)
    rights = to_files | _CHANGE | (_REFER if version >= 2 else 0)
    attributes = struct.pack("=Q", rights)
    rules = _syscall(_CREATE_RULESET, attributes, ctypes.c_size_t(len(attributes)), ctypes.c_uint32(0))
    if rules < 0:
        return False
    # beneath /dev only existing files are written; shared memory is made and removed; threads name themselves in /proc
    allowed = {"/dev": to_files, "/proc/self": to_files, "/dev/shm": rights, **dict.fromkeys(writable, rights)}
    try:
        for folder, right in allowed.items():
            if os.path.isdir(folder) and not _allow(rules, folder, right):
                return False
        ctypes.CDLL(None).prctl(_PR_SET_NO_NEW_PRIVS, *map(ctypes.c_ulong, (1, 0, 0, 0)))
        return _syscall(_RESTRICT_SELF, ctypes.c_int(rules), ctypes.c_uint32(0)) == 0
    finally:
        os.close(rules)


def _allow(rules: int, folder: str, rights: int) -> bool:
    beneath = os.open(folder, os.O_PATH)
    try:
        rule = struct.pack("=Qi", rights, beneath)
        return _syscall(_ADD_RULE, ctypes.c_int(rules), ctypes.c_int(_PATH_BENEATH), rule, ctypes.c_uint32(0)) == 0
    finally:
        os.close(beneath)


def available() -> str | None:
    """None if the seal holds here, else why not. Tried for real in a process that is thrown away."""
    if not abi():
        return "the kernel has no Landlock"
    with scratch.folder() as inside, scratch.folder() as outside:
        child = os.fork()
        if child == 0:
            try:
                os._exit(_probe(inside, outside))
            finally:
                os._exit(3)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return {0: None, 1: "Landlock is refused", 2: "Landlock does not hold"}.get(status, "the probe of Landlock died")


def _probe(inside: str, outside: str) -> int:
    if not seal([inside]):
        return 1
    os.mkdir(os.path.join(inside, "x"))
    try:
        os.mkdir(os.path.join(outside, "x"))
    except PermissionError:
        return 0
    return 2

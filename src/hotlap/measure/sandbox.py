"""A trial leaves no trace and reaches no network: a private view of the file system whose changes die with it.

As root everything below `/` is overlaid; otherwise the folders a script usually writes to. Both live in a mount
namespace of their own, with a private /dev/shm, process numbers of their own, and no network but loopback."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import signal
import socket
import struct
import sys
import tempfile
from collections.abc import Sequence
from typing import Literal, cast, get_args

from hotlap.errors import HotlapError
from hotlap.measure import landlock, scratch

Kind = Literal["namespace", "redirect", "none"]

_NEWNS, _NEWIPC, _NEWUSER, _NEWPID, _NEWNET = 0x20000, 0x8000000, 0x10000000, 0x20000000, 0x40000000
_BIND, _REC, _PRIVATE = 4096, 16384, 1 << 18
_PR_SET_PDEATHSIG = 1
_UPPER_BYTES = 4 << 30  # the most a trial may write; taken from memory only as it writes
_SYSTEM = ("/proc", "/sys", "/dev")


def _call(result: int, what: str) -> None:
    if result:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _mount(source: str, target: str, kind: str | None, flags: int = 0, data: str = "") -> None:
    kind_bytes = kind.encode() if kind else None
    done = _libc().mount(source.encode(), target.encode(), kind_bytes, ctypes.c_ulong(flags), data.encode())
    _call(done, f"mount {kind or 'bind'} {target}")


def enter(scratch: str, shared: Sequence[str], folders: Sequence[str], allow_network: bool) -> None:
    """Move this process, which must have one thread, into the private view. `shared` folders stay the real ones.
    The pid namespace begins with the next fork."""
    uid, gid, cwd = os.getuid(), os.getgid(), os.getcwd()
    root = uid == 0
    flags = _NEWNS | _NEWPID | _NEWIPC | (0 if root else _NEWUSER) | (0 if allow_network else _NEWNET)
    _call(_libc().unshare(flags), "unshare")
    if not root:
        _write("/proc/self/setgroups", "deny")
        _write("/proc/self/uid_map", f"{uid} {uid} 1")
        _write("/proc/self/gid_map", f"{gid} {gid} 1")
    _mount("none", "/", None, _REC | _PRIVATE)
    held = [os.open(folder, os.O_PATH) for folder in shared]
    _mount("tmpfs", scratch, "tmpfs", 0, f"size={_UPPER_BYTES},mode=700")
    top = f"{scratch}/root" if root else ""
    if root:
        _overlay_everything(scratch, top)
    else:
        _overlay_folders(scratch, folders)
    for descriptor, folder in zip(held, shared, strict=True):
        os.makedirs(top + folder, exist_ok=True)
        _mount(f"/proc/self/fd/{descriptor}", top + folder, None, _BIND)
        os.close(descriptor)
    size = os.statvfs("/dev/shm")
    _mount("tmpfs", f"{top}/dev/shm", "tmpfs", 0, f"size={size.f_blocks * size.f_frsize},mode=1777")
    if root:
        os.chroot(top)
    os.chdir(cwd)  # without this the working directory lies below the overlay, and writes hit the real folder
    if not allow_network:
        _raise_loopback()


def _overlay_everything(scratch: str, top: str) -> None:
    _overlay("/", top, f"{scratch}/top", True)
    for number, (point, kind) in enumerate(_mounts()):
        if point == "/" or point == scratch or point.startswith((scratch + "/", *(s + "/" for s in _SYSTEM))):
            continue
        if point in _SYSTEM:
            _mount(point, top + point, None, _BIND | _REC)
        elif os.path.isdir(point):
            try:
                _overlay(point, top + point, f"{scratch}/m{number}", True)
            except OSError:  # a file system overlay cannot stand on: readable, and sealed
                _mount(point, top + point, None, _BIND)
                _mount(point, top + point, None, _BIND | 32 | 1)  # remount, read-only
        elif kind:
            _mount(point, top + point, None, _BIND)


def _overlay_folders(scratch: str, folders: Sequence[str]) -> None:
    """Each folder, and each mount inside one, which an overlay above it would show empty. The stores are named
    relative to the scratch folder, which itself may lie below one of the overlays by then."""
    inside = [point for point, _ in _mounts() if any(point.startswith(folder + "/") for folder in folders)]
    wanted = sorted({*folders, *(p for p in inside if os.path.isdir(p) and not p.startswith((scratch, *_SYSTEM)))})
    held = [os.open(folder, os.O_PATH) for folder in wanted]
    os.chdir(scratch)
    for number, (folder, descriptor) in enumerate(zip(wanted, held, strict=True)):
        _overlay(f"/proc/self/fd/{descriptor}", folder, str(number), False)
        os.close(descriptor)


def _overlay(lower: str, target: str, store: str, root: bool) -> None:
    for folder in (target, f"{store}/upper", f"{store}/work"):
        os.makedirs(folder, exist_ok=True)
    options = f"lowerdir={_escaped(lower)},upperdir={store}/upper,workdir={store}/work"
    _mount("overlay", target, "overlay", 0, options + (",redirect_dir=on" if root else ",userxattr"))


def _escaped(path: str) -> str:
    return path.replace("\\", "\\\\").replace(":", "\\:").replace(",", "\\,")


def _mounts() -> list[tuple[str, str]]:
    with open("/proc/self/mountinfo") as file:
        rows = [line.split() for line in file]
    points = [(row[4].replace("\\040", " "), row[row.index("-") + 1]) for row in rows]
    return sorted(dict(points).items())


def _write(path: str, text: str) -> None:
    with open(path, "w") as file:
        file.write(text)


def _raise_loopback() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as plug:
        request = struct.pack("16sh14x", b"lo", 1 | 64)  # IFF_UP | IFF_RUNNING
        fcntl.ioctl(plug, 0x8914, request)  # SIOCSIFFLAGS


def mount_proc() -> None:
    """In the first process of the new pid namespace: without its own /proc, pids there mean other processes."""
    with contextlib.suppress(OSError):
        _mount("proc", "/proc", "proc")


def die_with_parent() -> None:
    parent = os.getppid()
    _libc().prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it died before we asked
        os._exit(1)


def folders_to_protect(cwd: str, script: str) -> list[str]:
    """Where scripts usually write. One inside another stays on the list: below a folder of somebody else's, nothing
    could be written through the outer overlay alone."""
    wanted = {cwd, os.path.dirname(script), os.path.expanduser("~"), tempfile.gettempdir(), "/var/tmp"}
    return sorted(path for path in map(os.path.realpath, wanted) if os.path.isdir(path) and path != "/")


def forced() -> Kind | None:
    """What HOTLAP_SANDBOX asks for, for tests and for users in trouble."""
    wanted = os.environ.get("HOTLAP_SANDBOX", "")
    if not wanted:
        return None
    if wanted not in get_args(Kind):
        raise HotlapError(f"HOTLAP_SANDBOX={wanted} is not known: use {', '.join(get_args(Kind))}, or unset it")
    return cast(Kind, wanted)


def choose(allow_network: bool = False) -> tuple[Kind, str]:
    """The best protection to be had here, and why none better: namespaces, else redirected writes under a seal."""
    wanted = forced()
    if wanted == "none":
        return "none", "HOTLAP_SANDBOX=none"
    reasons: list[str] = []
    kinds: tuple[Kind, ...] = (wanted,) if wanted else ("namespace", "redirect")
    for kind in kinds:
        reason = available(allow_network) if kind == "namespace" else landlock.available()
        if reason is None:
            return kind, "; ".join(reasons)
        reasons.append(reason)
    if wanted:
        raise HotlapError(f"HOTLAP_SANDBOX={wanted} cannot be had here ({reasons[0]}): unset it, or choose another")
    return "none", "; ".join(reasons)


def available(allow_network: bool = False) -> str | None:
    """None if a sandbox can be had here, else why not. Tried for real in a process that is thrown away."""
    if not sys.platform.startswith("linux"):
        return f"{sys.platform} has no mount namespaces"
    with scratch.folder() as view, scratch.folder() as shared:
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                probe = os.path.join(tempfile.gettempdir(), f"hotlap-probe-{os.getpid()}")
                enter(view, [shared], folders_to_protect(os.getcwd(), probe), allow_network)
                _write(probe, "x")
                _write(os.path.join(shared, "seen"), "x")
                os.write(write, f"ok {probe}".encode())
            except BaseException as error:
                os.write(write, str(error).encode()[:500])
            os._exit(0)
        os.close(write)
        os.waitpid(child, 0)
        with os.fdopen(read) as file:
            answer = file.read()
        came_through = os.path.exists(os.path.join(shared, "seen"))
    if not answer.startswith("ok "):
        return answer or "the probe died"
    if os.path.exists(answer[3:]):
        os.unlink(answer[3:])
        return "writes came through to the real file system"
    return None if came_through else "the exchange folder could not be shared"

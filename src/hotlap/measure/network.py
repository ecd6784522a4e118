"""Which hosts a script tries to reach in a trial, and, where no network namespace keeps it from them, a refusal.

The refusal holds for Python's sockets only: C++ clients and programs the script starts go their own way."""

from __future__ import annotations

import errno
import ipaddress
import os
import socket
from typing import Any

_MOST = 50
_FILE = "hosts.txt"


def watch(folder: str, refuse: bool) -> None:
    """Patch this process for good. Hosts go to a file in the folder at once, so that forked workers add theirs."""
    noted = os.open(os.path.join(folder, _FILE), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    seen: set[str] = set()
    looked_up: set[str] = set()  # addresses that go by a name already noted
    resolve, connect, connect_ex = socket.getaddrinfo, socket.socket.connect, socket.socket.connect_ex

    def note(host: str) -> None:
        if host not in seen and len(seen) < _MOST:
            seen.add(host)
            os.write(noted, f"{host}\n".encode())

    def is_refused(address: Any) -> bool:
        host = address[0] if isinstance(address, tuple) and address else None
        if not isinstance(host, str) or is_local(host):
            return False
        if host not in looked_up:
            note(host)
        return refuse

    def getaddrinfo(host: Any, *args: Any, **kwargs: Any) -> Any:
        name = host.decode("ascii", "replace") if isinstance(host, bytes) else host
        if not isinstance(name, str) or is_local(name) or _address(name) is not None:
            return resolve(host, *args, **kwargs)
        note(name)
        if refuse:
            raise OSError(errno.ENETUNREACH, os.strerror(errno.ENETUNREACH))
        found = resolve(host, *args, **kwargs)
        looked_up.update(str(one[4][0]) for one in found)
        return found

    def connecting(self: socket.socket, address: Any) -> None:
        if is_refused(address):
            raise OSError(errno.ENETUNREACH, os.strerror(errno.ENETUNREACH))
        connect(self, address)

    def connecting_ex(self: socket.socket, address: Any) -> int:
        return errno.ENETUNREACH if is_refused(address) else connect_ex(self, address)

    socket.getaddrinfo = getaddrinfo
    socket.socket.connect = connecting  # type: ignore[method-assign, assignment]
    socket.socket.connect_ex = connecting_ex  # type: ignore[method-assign, assignment]


def is_local(host: str) -> bool:
    address = _address(host)
    if address is None:
        return host in ("", "localhost") or host.endswith(".localhost")
    return address.is_loopback or address.is_unspecified


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return None


def hosts(folder: str) -> list[str]:
    """What was noted, each once."""
    try:
        with open(os.path.join(folder, _FILE), errors="replace") as file:
            return list(dict.fromkeys(file.read().split("\n")[:-1]))[:_MOST]
    except OSError:
        return []

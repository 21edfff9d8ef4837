"""What a process and its children listen on, as the system knows it."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator
from pathlib import Path

_LISTENING_TCP = "0A"
_ACCEPTS = 0x10000


def tree(pid: int) -> Iterator[int]:
    """A process and all below it."""
    yield pid
    for task in Path(f"/proc/{pid}/task").iterdir():
        for child in (task / "children").read_text().split():
            yield from tree(int(child))


def listeners(pid: int) -> list[str]:
    """Addresses of TCP sockets, and Unix sockets, that the tree listens on."""
    inodes = {
        link.removeprefix("socket:[").removesuffix("]")
        for one in tree(pid)
        for descriptor in Path(f"/proc/{one}/fd").iterdir()
        if (link := _target(descriptor)).startswith("socket:[")
    }
    found = []
    for name in ("tcp", "tcp6"):
        for line in Path(f"/proc/{pid}/net/{name}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == _LISTENING_TCP and fields[9] in inodes:
                found.append(_address(fields[1]))
    for line in Path(f"/proc/{pid}/net/unix").read_text().splitlines()[1:]:
        fields = line.split()
        if int(fields[3], 16) & _ACCEPTS and fields[6] in inodes:
            found.append(f"unix:{fields[7] if len(fields) > 7 else ''}")
    for name in ("udp", "udp6"):
        for line in Path(f"/proc/{pid}/net/{name}").read_text().splitlines()[1:]:
            if line.split()[9] in inodes:
                found.append(f"udp:{_address(line.split()[1])}")
    return sorted(found)


def _target(descriptor: Path) -> str:
    try:
        return str(descriptor.readlink())
    except OSError:
        return ""


def _address(text: str) -> str:
    """`0100007F:1F90` is 127.0.0.1:8000: words in the machine's own order."""
    raw, port = text.split(":")
    words = [bytes.fromhex(raw[i : i + 8])[::-1] for i in range(0, len(raw), 8)]
    return f"{ipaddress.ip_address(b''.join(words))}:{int(port, 16)}"

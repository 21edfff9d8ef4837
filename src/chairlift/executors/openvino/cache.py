"""Memory of the paged key/value cache: how much there may be, and the tensors themselves."""

from __future__ import annotations

import mmap
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import openvino as ov

from chairlift.core.errors import InvalidOption

FREE_MEMORY_SHARE = 0.3
"""Part of the memory still free after loading that the cache takes by default. It is touched only as it fills."""

HUGE_PAGE_BYTES = 2 << 20
"""That of x86 and of most ARM systems."""
SMALL_PAGES_BYTES = 1 << 19
"""So much at the beginning of each tensor is in small pages: the first short answer would take a huge one in every
tensor, which may be as much as a small model."""


@dataclass(frozen=True, slots=True)
class CachePort:
    """One cache input of a compiled graph: its name, element type, and the shape of one block."""

    name: str
    kind: ov.Type
    block_shape: tuple[int, ...]

    @property
    def block_bytes(self) -> int:
        size: int = self.kind.size
        return int(np.prod(self.block_shape)) * size


def cache_ports(compiled: ov.CompiledModel) -> list[CachePort]:
    """The cache inputs of a compiled body, with what the plugin decided for them."""
    return [
        CachePort(port.any_name, port.element_type, tuple(port.partial_shape[i].get_length() for i in (1, 2, 3)))
        for port in compiled.inputs
        if "_cache." in port.any_name
    ]


def allocate(ports: Sequence[CachePort], num_blocks: int) -> dict[str, ov.Tensor]:
    """Zeroed tensors of `num_blocks` blocks for every port, all but their beginning in huge pages where there are any.

    With small pages a step over long contexts spends a few percent of its time finding addresses.

    Raises:
        InvalidOption: the system does not promise that much memory.
    """
    return {port.name: _tensor(port, num_blocks) for port in ports}


def _tensor(port: CachePort, num_blocks: int) -> ov.Tensor:
    num_bytes = port.block_bytes * num_blocks
    try:
        memory = mmap.mmap(-1, num_bytes + HUGE_PAGE_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except (OSError, OverflowError) as error:
        raise InvalidOption(f"cannot reserve a key/value cache of {num_blocks} blocks: {error}") from error
    room = np.frombuffer(memory, np.uint8)
    first = -(room.ctypes.data + SMALL_PAGES_BYTES) % HUGE_PAGE_BYTES
    if hasattr(mmap, "MADV_HUGEPAGE") and num_bytes > SMALL_PAGES_BYTES:
        with suppress(OSError):  # a system without them: small ones serve as well
            memory.madvise(mmap.MADV_HUGEPAGE, first + SMALL_PAGES_BYTES)
    cells = room[first : first + num_bytes].view({1: np.uint8, 2: np.uint16, 4: np.float32}[port.kind.size])
    return ov.Tensor(cells, ov.Shape([num_blocks, *port.block_shape]), port.kind)


def num_cache_blocks(
    block_bytes: int,
    block_size: int,
    *,
    memory_bytes: int | None,
    max_num_seqs: int,
    max_model_len: int,
    returning_bytes: int = 0,
) -> int:
    """Blocks that sequences may use: what `memory_bytes` holds, or a share of the free memory.

    `returning_bytes` more will be free before the cache fills.

    Never more than `max_num_seqs` sequences of `max_model_len` tokens can fill, and one less than fits: the executor
    needs a scratch block of its own.

    Raises:
        InvalidOption: not even one block fits, or the memory is not there.
    """
    available = available_bytes()
    available += returning_bytes if available else 0  # not every system says what is free
    budget = int(available * FREE_MEMORY_SHARE) if memory_bytes is None else memory_bytes
    num_blocks = min(budget // block_bytes - 1, max_num_seqs * -(-max_model_len // block_size))
    if memory_bytes is not None and available and num_blocks * block_bytes > available:  # given out when it is used
        raise InvalidOption(
            f"a key/value cache of {num_blocks * block_bytes} bytes does not fit: {available} bytes of memory are free"
        )
    if num_blocks < 1:
        needed = 2 * block_bytes
        raise InvalidOption(f"the key/value cache needs at least {needed} bytes, but may have only {budget}")
    return num_blocks


# ---------------------------------------------------------------- what the system has


def available_bytes(root: Path = Path("/")) -> int:
    """Memory that can still be taken without pushing others out: the machine's, or less in a control group.

    A group's file pages that nobody used lately are not counted as taken: a model file that was just read is there.

    Source: proc(5), MemAvailable; cgroups(7), memory.max, memory.current and memory.stat (version 2), and their
    counterparts of version 1.
    """
    available = _number_after("MemAvailable:", root / "proc/meminfo") * 1024
    groups = (
        ("sys/fs/cgroup", "memory.max", "memory.current", "inactive_file "),
        ("sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file "),
    )
    for folder, limit_file, used_file, idle in groups:
        limit, used = _number_in(root / folder / limit_file), _number_in(root / folder / used_file)
        if limit is not None and used is not None:
            used -= _number_after(idle, root / folder / "memory.stat")
            available = min(available, max(limit - used, 0))
    return available


def _number_after(label: str, path: Path) -> int:
    """The number on the line that begins with `label`; 0 if there is no such line or file."""
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.removeprefix(label).split()[0]) for line in lines if line.startswith(label)), 0)


def _number_in(path: Path) -> int | None:
    """The number in a one-line file; None if there is no such file or it says `max`."""
    try:
        text = path.read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None

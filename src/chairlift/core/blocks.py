"""The pool of cache blocks: who holds which, and in which order free ones are used again."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Container, Iterable


class BlockPool:
    """Reference counts of `num_blocks` blocks, ids 0 .. num_blocks - 1.

    A block is held (count > 0), kept (count 0, its content may be found again) or blank (count 0, content worthless).
    Blank blocks are taken first, then kept ones, least recently used first.
    """

    __slots__ = ("_blank", "_kept", "_refs", "num_blocks", "num_repeats")

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self.num_repeats = 0
        """Holders of blocks beyond the first of each, summed."""
        self._refs = [0] * num_blocks
        self._blank = list(range(num_blocks - 1, -1, -1))
        self._kept: OrderedDict[int, None] = OrderedDict()

    @property
    def num_free(self) -> int:
        """Blocks that `take` could give out: blank and kept."""
        return len(self._blank) + len(self._kept)

    @property
    def num_kept(self) -> int:
        return len(self._kept)

    @property
    def num_held(self) -> int:
        return self.num_blocks - self.num_free

    def refs(self, block: int) -> int:
        return self._refs[block]

    def take(self) -> tuple[int, bool]:
        """A block with count 1, and whether it was a kept one, whose content is lost by this.

        Raises:
            IndexError: no block is free. The caller asks `num_free` first.
        """
        if self._blank:
            block = self._blank.pop()
            self._refs[block] = 1
            return block, False
        if not self._kept:
            raise IndexError("no free block")
        block, _ = self._kept.popitem(last=False)
        self._refs[block] = 1
        return block, True

    def num_idle(self, blocks: list[int]) -> int:
        """How many of these blocks nobody holds."""
        return [*map(self._refs.__getitem__, blocks)].count(0)

    def retain(self, blocks: Iterable[int]) -> None:
        """One more holder of each of these held or kept blocks."""
        all_refs, kept = self._refs, self._kept
        for block in blocks:
            if all_refs[block] == 0:
                del kept[block]
            else:
                self.num_repeats += 1
            all_refs[block] += 1

    def drop(self, blocks: Iterable[int], keep: Container[int]) -> None:
        """One holder less of each, in this order; the last one leaves a block kept (as the most recently used) if it is
        in `keep`, or blank.

        Raises:
            ValueError: nobody holds it. A count below zero is a block given out twice later on.
        """
        all_refs, kept = self._refs, self._kept
        for block in blocks:
            refs = all_refs[block] - 1
            if refs < 0:
                raise ValueError(f"block {block} is not held")
            all_refs[block] = refs
            if refs:
                self.num_repeats -= 1
            elif block in keep:
                kept[block] = None
            else:
                self._blank.append(block)

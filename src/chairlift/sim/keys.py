"""Keys for the blocks of prompts that consist of numbered contents, so that nobody need spell them with tokens.

A run is a stretch of consecutive contents of one width, which is a multiple of the block size. All that comes before a
block follows from where in which run it stands, and from what came before that run:

    contents   7    8    9    30   31         widths 128, blocks of 64
    runs       |--- a ---|    |- b -|         a: nothing before it, from 7 on; b: after the key a + 5, from 30 on
    keys       a a+1 .. a+5   b .. b+3

So a key costs an addition, and what is remembered is one number a run. A key is below 2^63.
"""

from __future__ import annotations

from chairlift.sim.workload import Blocks

RUN_BITS = 32
"""Blocks of a run are told apart by so many bits."""
MAX_RUNS = 1 << 31
"""More than a workload has: what comes after them is spelled."""


class KeyMaker:
    """Gives keys to prompts of one workload: equal keys where they begin alike, whatever the order they come in."""

    def __init__(self, block_size: int) -> None:
        self.block_size = block_size
        self._runs: dict[tuple[int, int, int], int] = {}
        """By the key before it, its first content and the width of its contents."""

    def keys(self, prompt: Blocks) -> list[int]:
        """One for each leading block that lies within one content, up to the first that does not."""
        size = self.block_size
        keys: list[int] = []
        left, parent, base, place = prompt.num_tokens, -1, 0, 0
        expected = 0, 0
        for part in prompt.parts:
            is_whole = part.width % size == 0
            if (part.first, part.width) != expected:
                run = self._runs.setdefault((parent, part.first, part.width), len(self._runs))
                if run >= MAX_RUNS:
                    break
                base, place = run << RUN_BITS, 0
            num_contents = part.last - part.first + 1 if is_whole else 1
            num_tokens = min(left, num_contents * part.width)
            keys += range(base + place, base + place + num_tokens // size)
            left -= num_tokens
            if not is_whole or left <= 0:
                break
            place += num_tokens // size
            parent = keys[-1]
            expected = part.last + 1, part.width
        return keys

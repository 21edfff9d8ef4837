"""How much of a workload's prompts an endless prefix cache would save: the bound that a real cache is held against."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from chairlift.sim.workload import Asked, Blocks, Prompt


@dataclass(slots=True)
class _Node:
    """A content after those before it: how many of its tokens were seen, and what came after all of it."""

    num_seen: int = 0
    after: dict[int, _Node] = field(default_factory=dict)


class EndlessCache:
    """Every prefix that was ever asked, in whole blocks of `block_size` tokens."""

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self._root = _Node()
        self.queried_tokens = 0
        self.hit_tokens = 0

    @property
    def hit_rate(self) -> float:
        return self.hit_tokens / self.queried_tokens if self.queried_tokens else 0.0

    def ask(self, prompt: Prompt) -> int:
        """Leading tokens that were asked before, at least one less than the prompt has; it is known from now on."""
        node, found, matches = self._root, 0, True
        for content, count in _contents(prompt):
            nxt = node.after.get(content)
            if nxt is None:
                nxt = node.after[content] = _Node()
            if matches:
                found += min(nxt.num_seen, count)
                matches = nxt.num_seen >= count
            nxt.num_seen = max(nxt.num_seen, count)
            node = nxt
        found = min(found, prompt.num_tokens - 1) // self._block_size * self._block_size
        self.queried_tokens += prompt.num_tokens
        self.hit_tokens += found
        return found


def _contents(prompt: Prompt) -> Iterator[tuple[int, int]]:
    """Each content of a prompt with its tokens."""
    if not isinstance(prompt, Blocks):
        yield from ((token, 1) for token in prompt.tokens())
        return
    left = prompt.num_tokens
    for part in prompt.parts:
        for content in range(part.first, part.last + 1):
            count = min(part.width, left)
            if count:
                yield content, count
            left -= count


def everything(workload: Iterable[Asked]) -> Iterator[Asked]:
    """All that is asked if every answer takes no time, what follows a request right after it."""
    for asked in workload:
        yield asked
        if asked.follow is not None:
            yield from everything(asked.follow(asked.arrival))

"""How much of a workload's prompts an endless prefix cache would save: the bound that a real cache is held against."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from chairlift.sim.workload import VOCAB_SIZE, Asked, Blocks, Prompt

CONTENT_BITS = VOCAB_SIZE.bit_length()


class EndlessCache:
    """Every prefix that was ever asked, in whole blocks of `block_size` tokens.

    A prefix is a number; the one that a content makes of it, and how many of that content's tokens were seen there, are
    found by both.
    """

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self._after: dict[int, int] = {}
        self._num_seen: list[int] = [0]
        self.queried_tokens = 0
        self.hit_tokens = 0

    @property
    def hit_rate(self) -> float:
        return self.hit_tokens / self.queried_tokens if self.queried_tokens else 0.0

    def ask(self, prompt: Prompt) -> int:
        """Leading tokens that were asked before, at least one less than the prompt has; it is known from now on."""
        after, num_seen = self._after, self._num_seen
        prefix, found, matches = 0, 0, True
        for content, count in _contents(prompt):
            key = prefix << CONTENT_BITS | content
            prefix = after.get(key, 0)
            if not prefix:
                prefix = after[key] = len(num_seen)
                num_seen.append(0)
            if matches:
                found += min(num_seen[prefix], count)
                matches = num_seen[prefix] >= count
            if num_seen[prefix] < count:
                num_seen[prefix] = count
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

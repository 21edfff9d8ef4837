"""The cache as sequences see it: the block pool, and the index that finds computed prefixes again."""

from __future__ import annotations

from chairlift.core.blocks import BlockPool
from chairlift.core.prefix import Content, Key, PrefixIndex, begin_chain, content_at, key_after, num_given_keys
from chairlift.core.sequence import Sequence
from chairlift.core.types import CacheShape


class KVCache:
    """Blocks of all sequences. A block is published after the step that filled it, and found only from block 0 on."""

    __slots__ = ("_coming", "_enable_prefix_caching", "block_size", "index", "pool")

    def __init__(self, shape: CacheShape, *, enable_prefix_caching: bool) -> None:
        self.pool = BlockPool(shape.num_blocks)
        self.index = PrefixIndex()
        self.block_size = shape.block_size
        self._enable_prefix_caching = enable_prefix_caching
        self._coming: dict[Key, Sequence] = {}
        """Keys of blocks that a sequence is about to compute, with that sequence."""

    @property
    def num_shared_tokens(self) -> int:
        """Tokens of blocks that several sequences hold, counted for each holder but one. Such blocks are full."""
        return self.pool.num_repeats * self.block_size

    def num_blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)

    def match(self, sequence: Sequence) -> list[int]:
        """Blocks that hold the longest computed prefix of the sequence's tokens. Takes nothing.

        At least one token is always left to compute, since a token is sampled after it; a sequence whose prompt is
        still to be scored is matched only as far as it was scored.
        """
        if not self._enable_prefix_caching:
            return []
        num_matchable, chain = self._num_matchable(sequence), sequence.chain
        if not chain:
            chain += begin_chain(sequence.request)
        num_given = min(num_given_keys(sequence.request), num_matchable, len(chain) - 1)
        blocks = self.index.leading(chain, num_given)
        if len(blocks) < num_given:
            return blocks
        for i in range(num_given, num_matchable):
            parent, content = self._chain_to(sequence, i)
            block = self.index.find(sequence.chain[i + 1], parent, content)
            if block is None:
                break
            blocks.append(block)
        return blocks

    def expect(self, sequence: Sequence) -> None:
        """A sequence joined and will compute its missing full blocks: whoever needs the same can wait for them."""
        if not self._enable_prefix_caching:
            return
        for i in range(len(sequence.blocks), len(sequence.tokens) // self.block_size):
            self._chain_to(sequence, i)
            key = sequence.chain[i + 1]
            if key not in self._coming:
                self._coming[key] = sequence
                sequence.awaited.append(key)

    def is_coming(self, sequence: Sequence, num_matched: int) -> bool:
        """Whether the block after the matched ones is being computed by a sequence of the same or a better level."""
        if not self._coming or num_matched >= self._num_matchable(sequence):
            return False
        owner = self._coming.get(sequence.chain[num_matched + 1])
        return owner is not None and owner.order[0] <= sequence.order[0]

    def num_free_after(self, matched: list[int]) -> int:
        """Blocks left to take once the matched ones are attached."""
        return self.pool.num_free - self.pool.num_idle(matched)

    def attach(self, sequence: Sequence, blocks: list[int]) -> None:
        """Give a sequence without blocks a share in computed ones, and count their tokens as computed."""
        self.pool.retain(blocks)
        sequence.blocks = list(blocks)
        sequence.computed = len(blocks) * self.block_size
        sequence.published = len(blocks)

    def share(self, source: Sequence, sequence: Sequence) -> None:
        """Give another choice the full prompt blocks of `source`; the rest of the prompt it computes itself."""
        num_blocks = (source.num_prompt - 1) // self.block_size
        self.attach(sequence, source.blocks[:num_blocks])
        sequence.chain = source.chain[: num_blocks + 1]

    def reserve(self, sequence: Sequence) -> int:
        """Append one free block to the sequence's table. The caller has seen that one is free."""
        block, evicted = self.pool.take()
        if evicted:
            self.index.forget(block)
        sequence.blocks.append(block)
        return block

    def is_full(self, sequence: Sequence) -> bool:
        """Whether a decoding sequence has no room in its blocks for its last token."""
        return len(sequence.blocks) * self.block_size < len(sequence.tokens)

    def publish(self, sequence: Sequence, computed: int) -> None:
        """Make the full blocks among the first `computed` tokens findable; the step that filled them is over."""
        if not self._enable_prefix_caching:
            return
        for i in range(sequence.published, computed // self.block_size):
            parent, content = self._chain_to(sequence, i)
            self.index.publish(sequence.blocks[i], sequence.chain[i + 1], parent, content)
            if self._coming.get(sequence.chain[i + 1]) is sequence:
                del self._coming[sequence.chain[i + 1]]
        sequence.published = computed // self.block_size

    def release(self, sequence: Sequence) -> None:
        """Give up all blocks, the tail first: a prefix outlives what follows it."""
        self.pool.drop(reversed(sequence.blocks), keep=self.index.published)
        sequence.blocks = []
        sequence.computed = 0
        sequence.published = 0
        for key in sequence.awaited:
            if self._coming.get(key) is sequence:
                del self._coming[key]
        sequence.awaited = []

    def distrust(self, sequence: Sequence) -> None:
        """Make nothing of this sequence findable any longer: its computation went wrong."""
        for block in sequence.blocks:
            self.index.forget(block)

    def num_exclusive(self, sequence: Sequence, matched: list[int]) -> int:
        """Blocks that `release` would free now, but for those that are matched: they would be taken again."""
        refs = self.pool.refs
        return sum(1 for block in sequence.blocks if refs(block) == 1 and block not in matched)

    def frees_some(self, sequence: Sequence) -> bool:
        """Whether `release` would free at least one block now."""
        refs = self.pool.refs
        return any(refs(block) == 1 for block in reversed(sequence.blocks))

    def _num_matchable(self, sequence: Sequence) -> int:
        """Leading blocks that may come from the cache."""
        limit = len(sequence.tokens) - 1
        if sequence.wants_scores:
            limit = min(limit, sequence.scored)
        return limit // self.block_size

    def _chain_to(self, sequence: Sequence, i: int) -> tuple[Key, Content]:
        """Parent key and content of full block i; the chain then reaches at least key i."""
        chain = sequence.chain
        if not chain:
            chain += begin_chain(sequence.request)
        content = content_at(sequence.request, sequence.tokens, i, self.block_size)
        if len(chain) == i + 1:
            chain.append(key_after(chain[i], content))
        return chain[i], content

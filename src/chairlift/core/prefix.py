"""From the content of a full block to the block that holds it.

A block's content depends on every token before it, so its key is a chain:

    root = H(len(salt) | salt)        key[i] = H(key[i - 1] | tokens of block i, four bytes each)

with H = SHA-256. The fields have fixed width or a length in front, so no two different inputs spell the same bytes;
the salt separates those who may not see each other's cache.

Source: block tables of a paged cache, Kwon et al. 2023, arXiv:2309.06180; the chain is ours.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence as Seq
from hashlib import sha256


def root_key(salt: bytes) -> bytes:
    """Key before the first block, 32 bytes."""
    return sha256(len(salt).to_bytes(8, "little") + salt).digest()


def block_content(tokens: Seq[int]) -> bytes:
    """Token ids as bytes of fixed width: what is hashed, and what is compared on a hit."""
    return array("I", tokens).tobytes()


def chain_key(parent: bytes, content: bytes) -> bytes:
    """Key of a block from its parent's key and its content, 32 bytes."""
    return sha256(parent + content).digest()


class PrefixIndex:
    """Keys of published blocks. One block per key, one key per block."""

    __slots__ = ("_blocks", "_keys")

    def __init__(self) -> None:
        self._blocks: dict[bytes, tuple[int, bytes, bytes]] = {}  # key -> block, parent key, content
        self._keys: dict[int, bytes] = {}

    def __len__(self) -> int:
        return len(self._blocks)

    def __contains__(self, block: int) -> bool:
        return block in self._keys

    def find(self, key: bytes, parent: bytes, content: bytes) -> int | None:
        """The block with this key. Parent and content are compared too: a collision of keys is a miss, not a mix-up."""
        entry = self._blocks.get(key)
        if entry is None or entry[2] != content or entry[1] != parent:
            return None
        return entry[0]

    def publish(self, block: int, key: bytes, parent: bytes, content: bytes) -> None:
        """Make a computed block findable. The first block published under a key stays."""
        if key not in self._blocks and block not in self._keys:
            self._blocks[key] = (block, parent, content)
            self._keys[block] = key

    def forget(self, block: int) -> None:
        """The block's content is about to be overwritten."""
        key = self._keys.pop(block, None)
        if key is not None:
            del self._blocks[key]

"""From the content of a full block to the block that holds it.

A block's content depends on every token before it, so its key is a chain:

    root = H(len(salt) | salt)        key[i] = H(key[i - 1] | tokens of block i, four bytes each)

with H = SHA-256. The fields have fixed width or a length in front, so no two different inputs spell the same bytes;
the salt separates those who may not see each other's cache.

Blocks that came with keys (`BlockKeys`) are not hashed: such a key is a number, content and key in one, and equal to no
key that is 32 bytes. Under a salt it is content only, in nine bytes, which no tokens are, and the chain goes over it.

Source: block tables of a paged cache, Kwon et al. 2023, arXiv:2309.06180; the chain is ours.
"""

from __future__ import annotations

from array import array
from collections.abc import KeysView
from collections.abc import Sequence as Seq
from hashlib import sha256
from itertools import islice

from chairlift.core.types import Request

Key = bytes | int
Content = bytes | int


def root_key(salt: bytes) -> bytes:
    """Key before the first block, 32 bytes."""
    return sha256(len(salt).to_bytes(8, "little") + salt).digest()


def block_content(tokens: Seq[int]) -> bytes:
    """Token ids as bytes of fixed width: what is hashed, and what is compared on a hit."""
    return array("I", tokens).tobytes()


def chain_key(parent: bytes, content: bytes) -> bytes:
    """Key of a block from its parent's key and its content, 32 bytes."""
    return sha256(parent + content).digest()


def key_after(parent: Key, content: Content) -> Key:
    """Key of a block after a parent of either kind: hashed, unless its content is a key that was given."""
    if isinstance(content, int):
        return content
    return chain_key(parent.to_bytes(32, "little") if isinstance(parent, int) else parent, content)


def num_given_keys(request: Request) -> int:
    """Leading blocks whose keys are the numbers that came with the request."""
    return 0 if request.block_keys is None or request.salt else len(request.block_keys.keys)


def content_at(request: Request, tokens: Seq[int], i: int, block_size: int) -> Content:
    """Content of full block i of a sequence with these tokens."""
    given = request.block_keys
    if given is None or i >= len(given.keys):
        return block_content(tokens[i * block_size : (i + 1) * block_size])
    return b"\0" + given.keys[i].to_bytes(8, "little") if request.salt else given.keys[i]


def begin_chain(request: Request) -> list[Key]:
    """The root, then the keys that need no hashing."""
    given = request.block_keys
    return [root_key(request.salt), *(given.keys if given is not None and num_given_keys(request) else ())]


class PrefixIndex:
    """Keys of published blocks. One block per key, one key per block."""

    __slots__ = ("_blocks", "_keys")

    def __init__(self) -> None:
        self._blocks: dict[Key, tuple[int, Key, Content]] = {}  # key -> block, parent key, content
        self._keys: dict[int, Key] = {}

    def __len__(self) -> int:
        return len(self._blocks)

    def __contains__(self, block: int) -> bool:
        return block in self._keys

    @property
    def published(self) -> KeysView[int]:
        """All blocks that can be found."""
        return self._keys.keys()

    def find(self, key: Key, parent: Key, content: Content) -> int | None:
        """The block with this key. Parent and content are compared too: a collision of keys is a miss, not a mix-up."""
        entry = self._blocks.get(key)
        if entry is None or entry[2] != content or entry[1] != parent:
            return None
        return entry[0]

    def leading(self, chain: list[Key], count: int) -> list[int]:
        """Blocks of the first `count` keys after a chain's root, which were given, up to the first that is not there.

        As in `find`, one that followed another beginning is not there, whoever says that its key is the same.
        """
        entries, found = self._blocks, list[int]()
        parent = chain[0]
        for key in islice(chain, 1, count + 1):
            entry = entries.get(key)
            if entry is None or entry[1] != parent:
                break
            found.append(entry[0])
            parent = key
        return found

    def publish(self, block: int, key: Key, parent: Key, content: Content) -> None:
        """Make a computed block findable. The first block published under a key stays."""
        if key not in self._blocks and block not in self._keys:
            self._blocks[key] = (block, parent, content)
            self._keys[block] = key

    def forget(self, block: int) -> None:
        """The block's content is about to be overwritten."""
        key = self._keys.pop(block, None)
        if key is not None:
            del self._blocks[key]

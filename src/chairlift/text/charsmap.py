"""SentencePiece's compiled table of replacements, checked before a library follows its offsets.

    | trie bytes: u32 | trie: u32 units ... | texts, each ended by a zero byte |

The trie is a double array: from unit i, byte c leads to unit `i ^ offset ^ c`, if that unit is labelled c; where a
replaced text ends, unit `i ^ offset` holds where its replacement begins. The library checks none of these numbers.

Source: Yata, darts-clone (format of the units); Kudo and Richardson 2018, arXiv:1808.06226.
"""

from __future__ import annotations

import struct

_VALUE = 0x7FFFFFFF


def charsmap_fault(charsmap: bytes) -> str | None:
    """What is wrong with a table of replacements, None if it can be used."""
    size = int.from_bytes(charsmap[:4], "little")
    trie, texts = charsmap[4 : 4 + size], charsmap[4 + size :]
    if len(charsmap) < 4 or len(trie) != size or not size or size % 1024:
        return "its trie is cut off"
    if not texts.endswith(b"\0"):
        return "its texts are cut off"
    try:
        texts.decode()
    except UnicodeDecodeError:
        return "its texts are not UTF-8"
    units = struct.unpack(f"<{size // 4}I", trie)
    for index, unit in enumerate(units):
        if unit > _VALUE:
            continue
        target = index ^ (unit >> 10 << ((unit & 1 << 9) >> 6))
        if target >= len(units):  # a multiple of 256, so that bytes stay inside too
            return "its trie leads outside"
        if unit & 1 << 8:
            start = units[target] & _VALUE
            if start >= len(texts) or texts[start] & 0xC0 == 0x80:
                return "it names no whole text"
    return None

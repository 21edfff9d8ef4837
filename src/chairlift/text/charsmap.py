"""SentencePiece's compiled table of replacements, as its model files and GGUF hold it.

    | trie bytes: u32 | trie: u32 units ... | texts, each ended by a zero byte |

The trie is a double array: from unit i, byte c leads to unit `i ^ offset ^ c`, if that unit is labelled c; where a
replaced text ends, unit `i ^ offset` holds where its replacement begins. Several branches may share what follows.

Source: Yata, darts-clone (format of the units); Kudo and Richardson 2018, arXiv:1808.06226.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable
from itertools import islice

MAX_REPLACED_CHARS = 64
"""A trie that leads back to itself would be followed to the end of every text, from each of its characters."""
MAX_REPLACEMENT_BYTES = 256
"""That of NFKC has 33."""
MAX_BRANCHES = 1 << 15
"""Characters that lead on from the first, or from any second place; those of NFKC have 14,000."""

_VALUE = 0x7FFFFFFF
_ENDS = 1 << 8
_START_BYTES = {1: range(1, 0x80), 2: range(0xC2, 0xE0), 3: range(0xE0, 0xF0), 4: range(0xF0, 0xF5)}
_LATER_BYTES = range(0x80, 0xC0)


class Replacements:
    """Replaces texts by others: at every place the longest that the table has. No reader of it can be led outside.

    Raises:
        ValueError: with what is wrong with the table.
    """

    def __init__(self, charsmap: bytes) -> None:
        self.charsmap = charsmap
        """The table as it was read."""
        size = int.from_bytes(charsmap[:4], "little")
        trie, self._texts = charsmap[4 : 4 + size], charsmap[4 + size :]
        if len(charsmap) < 4 or len(trie) != size or not size or size % 1024:
            raise ValueError("its trie is cut off")
        self._units = struct.unpack(f"<{size // 4}I", trie)
        _check(self._units, self._texts)
        firsts = self._characters([0])
        alone = {ord(first) for first, unit in firsts if self._units[unit] & _ENDS}
        starts = {ord(first) for first, _ in firsts} - alone
        follows = {ord(second) for second, _ in self._characters({unit for _, unit in firsts})}
        forms = [f"[{_ranges(alone)}]"] if alone else []
        if starts and follows:
            forms.append(f"[{_ranges(starts)}](?=[{_ranges(follows)}])")
        self._places = re.compile("|".join(forms) or "(?!)")
        """Where something may be replaced: most texts have few such places, and are not looked at otherwise."""

    def apply(self, text: str) -> str:
        """A text with everything replaced."""
        parts: list[str] = []
        end = 0
        for match in self._places.finditer(text):
            start = match.start()
            if start < end:
                continue
            found = self._longest(text, start)
            if found is not None:
                parts += (text[end:start], found[1])
                end = found[0]
        return "".join(parts) + text[end:]

    def _longest(self, text: str, start: int) -> tuple[int, str] | None:
        """Where the longest text that begins at `start` ends, and what replaces it."""
        found = None
        unit = 0
        for position in range(start, min(len(text), start + MAX_REPLACED_CHARS)):
            for byte in text[position].encode("utf-8", "replace"):
                child = self._child(unit, byte)
                if child is None:
                    break
                unit = child
            else:
                if self._units[unit] & _ENDS:
                    found = (position + 1, self._units[_target(unit, self._units[unit])] & _VALUE)
                continue
            break
        if found is None:
            return None
        end, text_start = found
        return end, self._texts[text_start : self._texts.index(0, text_start)].decode()

    def _child(self, unit: int, byte: int) -> int | None:
        child = _target(unit, self._units[unit]) ^ byte
        return child if self._units[child] & (_VALUE + 1 | 0xFF) == byte else None

    def _characters(self, units: Iterable[int]) -> list[tuple[str, int]]:
        """All whole characters that lead on from any of the units, and where to.

        Raises:
            ValueError: they are more than any table needs.
        """
        found: list[tuple[str, int]] = []
        for size, first_bytes in _START_BYTES.items():
            ahead = self._ahead([(b"", unit) for unit in units], first_bytes)
            for _ in range(size - 1):
                ahead = self._ahead(ahead, _LATER_BYTES)
            found += [(text, unit) for data, unit in ahead if (text := data.decode("utf-8", "ignore"))]
        return found

    def _ahead(self, places: list[tuple[bytes, int]], following: range) -> list[tuple[bytes, int]]:
        """What was read on the way to some units and where they are, one byte on."""
        steps = ((data + bytes((byte,)), child) for data, unit in places for byte in following
                 if (child := self._child(unit, byte)) is not None)  # fmt: skip
        ahead = list(islice(steps, MAX_BRANCHES + 1))
        if len(ahead) > MAX_BRANCHES:
            raise ValueError("its trie has too many branches")
        return ahead


def _check(units: tuple[int, ...], texts: bytes) -> None:
    """Check every unit, used or not.

    Raises:
        ValueError: one leads outside, or to what is no text.
    """
    if not texts.endswith(b"\0"):
        raise ValueError("its texts are cut off")
    if max(map(len, texts.split(b"\0"))) > MAX_REPLACEMENT_BYTES:
        raise ValueError(f"its texts have more than {MAX_REPLACEMENT_BYTES} bytes")
    try:
        texts.decode()
    except UnicodeDecodeError as error:
        raise ValueError("its texts are not UTF-8") from error
    for index, unit in enumerate(units):
        if unit > _VALUE:
            continue
        target = _target(index, unit)
        if target >= len(units):  # a multiple of 256, so that bytes stay inside too
            raise ValueError("its trie leads outside")
        if unit & _ENDS:
            start = units[target] & _VALUE
            if start >= len(texts) or texts[start] & 0xC0 == 0x80:
                raise ValueError("it names no whole text")


def _target(index: int, unit: int) -> int:
    """The unit that the branches of one are counted from."""
    return index ^ (unit >> 10 << ((unit & 1 << 9) >> 6))


def _ranges(codes: Iterable[int]) -> str:
    """Characters as runs, for a pattern: single ones beyond U+FFFF would be tried one after another."""
    runs: list[list[int]] = []
    for code in sorted(codes):
        if runs and runs[-1][1] == code - 1:
            runs[-1][1] = code
        else:
            runs.append([code, code])
    return "".join(f"{re.escape(chr(first))}-{re.escape(chr(last))}" for first, last in runs)

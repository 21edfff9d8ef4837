"""Pseudo-tokens: a journal that replays alike, and from which no prompt, answer or name can be read.

    token of a prompt or answer    0; every 8th of a block and the last one: bit 31, and 31 bits of a keyed hash of the
                                   salt and of all tokens up to itself
    token id that ends answers     bit 30 and 30 bits of a keyed hash of itself
    salt, name                     a keyed hash

So two sequences have equal blocks exactly as far as they have a common beginning under a common salt, which is all that
a scheduler ever compares; and an answer ends with the token that ends it. Equal tokens at other places, or after other
beginnings, have nothing in common: nothing can be counted. The key is random, lives as long as the process and is
written nowhere. Hashing every token would cost eight times as much and tell no more.

Source: ours; the hash is BLAKE2b, RFC 7693, with its key.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from collections.abc import Sequence as Seq
from hashlib import blake2b
from typing import Any

from chairlift.core.deadlines import E2E, TTFT
from chairlift.core.fairness import EVERYBODY
from chairlift.core.prefix import block_content, chain_key, root_key
from chairlift.core.snapshot import Entry
from chairlift.core.types import Finish, Request, SamplingParams, StepPlan

VOCAB_SIZE = 1 << 32
"""Of pseudo-tokens."""

_TOKEN_BIT = 1 << 31
_END_BIT = 1 << 30
GROUP = 8
"""Tokens that are hashed together; a block's last group may be shorter."""
_WORDS = frozenset({"", TTFT, E2E, EVERYBODY})
"""Strings in a snapshot that are ours, and neither names nor content."""


class Row:
    """What the tokens of one sequence so far have come to, and which tokens end it."""

    __slots__ = ("ends", "group", "offset", "state")

    def __init__(self, state: bytes, ends: frozenset[int] = frozenset(), offset: int = 0, group: Seq[int] = ()) -> None:
        self.state = state
        """Hash up to the last group of tokens."""
        self.ends = ends
        self.offset = offset
        """Tokens in the last block."""
        self.group = list(group)
        """Tokens after the last group."""


class Disguise:
    """Follows every sequence from its prompt to its end, starting with a snapshot. `secret` is a key of 32 bytes."""

    def __init__(self, secret: bytes) -> None:
        self._hashes = {
            what: blake2b(key=secret, digest_size=16, person=what.encode()) for what in ("token", "end", "salt", "name")
        }
        self._token_hash = self._hashes["token"]
        self._end_ids: dict[int, int] = {}
        self._block_size = 1
        self._rows: dict[int, Row] = {}
        """By slot, as an executor has them."""
        self._sequences: dict[tuple[int, int], Row] = {}

    # ------------------------------------------------------------ inputs

    def request(self, request: Request) -> Request:
        """The same as far as scheduling goes.

        Raises:
            TypeError: it came with keys of blocks, of which a digest knows nothing.
        """
        if request.block_keys is not None:
            raise TypeError("a digest is made of tokens, not of keys for blocks")
        row = Row(self._root_state(root_key(request.salt)))
        prompt = self._follow(row, request.prompt)
        params = request.params
        ends = params.stop_token_ids if params.ignore_eos else params.stop_token_ids + request.eos_token_ids
        for choice in range(request.n):
            self._sequences[request.id, choice] = Row(row.state, frozenset(ends), row.offset, row.group)
        return Request(
            id=request.id,
            prompt=prompt,
            params=SamplingParams(
                max_tokens=params.max_tokens,
                min_tokens=params.min_tokens,
                stop=("*",) if params.stop else (),
                stop_token_ids=tuple(map(self._end_id, params.stop_token_ids)),
                ignore_eos=params.ignore_eos,
                prompt_logprobs=params.prompt_logprobs,
            ),
            arrival=request.arrival,
            n=request.n,
            eos_token_ids=tuple(map(self._end_id, request.eos_token_ids)),
            priority=request.priority,
            salt=self._salt(root_key(request.salt)),
            principal=self.name(request.principal),
            tenant=self.name(request.tenant),
            ttft_deadline=request.ttft_deadline,
            e2e_deadline=request.e2e_deadline,
        )

    def begin(self, leaves: Iterable[int], joins: Iterable[tuple[int, int, int, int]]) -> None:
        """A step was planned: who is in which slot."""
        for slot in leaves:
            self._rows.pop(slot, None)  # a row that was there before the snapshot
        for slot, request_id, choice, _ in joins:
            self._rows[slot] = self._sequences[request_id, choice]

    def tokens(self, plan: StepPlan, tokens: Seq[int]) -> list[int]:
        """What a step sampled, parallel to the plan's sampling rows."""
        rows = self._rows
        sampling = [rows[slot] for slot in plan.decodes]
        sampling += [rows[chunk.slot] for chunk in plan.chunks if chunk.samples]
        hidden = []
        block_size = self._block_size
        for row, token in zip(sampling, tokens, strict=True):
            if token in row.ends or not 0 <= token < VOCAB_SIZE:
                hidden.append(self._end_id(token) if token in row.ends else -1)
                continue
            row.group.append(token)
            row.offset += 1
            closes = len(row.group) == GROUP or row.offset == block_size
            hidden.append(self._close(row) if closes else 0)
        return hidden

    def errors(self, errors: Mapping[int, str]) -> dict[int, str]:
        """Which rows failed, not with what words."""
        return dict.fromkeys(errors, "failed")

    def finish(self, finishes: Iterable[Finish]) -> None:
        """Sequences that are over."""
        for finish in finishes:
            self._sequences.pop((finish.id, finish.choice), None)

    def name(self, name: str) -> str:
        """Of a principal or a tenant. No name stays no name."""
        return f"~{self._hash('name', name.encode())[:6].hex()}" if name else name

    # ------------------------------------------------------------ snapshots

    def entries(self, entries: list[Entry]) -> list[Entry]:
        """A snapshot, which also says anew which sequences there are."""
        self._rows, self._sequences = {}, {}
        self._block_size = next(entry.fields["block_size"] for entry in entries if entry.of == "KVCache")
        requests = {place: e.fields["request"] for place, e in enumerate(entries) if e.of == "Request"}
        disguised = {place: self.request(request) for place, request in requests.items()}
        keys: dict[bytes, bytes] = {}
        result: list[Entry] = []
        for place, entry in enumerate(entries):
            if place in disguised:
                result.append(Entry("Request", {"request": disguised[place]}))
            elif entry.of == "PrefixIndex":
                result.append(Entry("PrefixIndex", {"entries": self._index(entry.fields["entries"], keys)}))
            elif entry.of == "Sequence":
                at = entry.fields["request"]["ref"]
                result.append(self._sequence(entry, requests[at], disguised[at], keys))
            elif entry.of == "Scheduler":
                result.append(Entry(entry.of, {**entry.fields, "_vocab_size": VOCAB_SIZE}))
            else:
                result.append(entry)
        return [self._hide(entry, keys) for entry in result]

    def _sequence(self, entry: Entry, request: Request, disguised: Request, keys: dict[bytes, bytes]) -> Entry:
        fields, block_size = dict(entry.fields), self._block_size
        output, slot = fields["output"], fields["slot"]
        row = self._sequences[request.id, fields["choice"]]
        over = output[-1:] if output and output[-1] in row.ends else []
        hidden = self._follow(row, output[: len(output) - len(over)])
        fields["output"] = hidden + [self._end_id(token) for token in over]
        if fields["joined"] and slot >= 0:
            self._rows[slot] = row
        if fields.get("awaited"):
            real, pseudo = [*request.prompt, *output], [*disguised.prompt, *fields["output"]]
            key, other = root_key(request.salt), root_key(disguised.salt)
            for start in range(0, len(real) - block_size + 1, block_size):
                key = chain_key(key, block_content(real[start : start + block_size]))
                other = chain_key(other, block_content(pseudo[start : start + block_size]))
                keys[key] = other
        return Entry(entry.of, fields)

    def _index(
        self, entries: list[tuple[int, bytes, bytes]], keys: dict[bytes, bytes]
    ) -> list[tuple[int, bytes, bytes]]:
        """The prefix index: each chain from its root on. What stands as nobody's child is a root."""
        found = {chain_key(parent, content): (parent, content) for _, parent, content in entries}
        states: dict[bytes, bytes] = {}
        contents: dict[bytes, bytes] = {}
        for last in found:
            path, key = [], last
            while key not in states and key in found:
                path.append(key)
                key = found[key][0]
            if key not in states:
                states[key], keys[key] = self._root_state(key), root_key(self._salt(key))
            for child in reversed(path):
                parent, content = found[child]
                row = Row(states[parent])
                contents[child] = block_content(self._follow(row, memoryview(content).cast("I")))
                states[child], keys[child] = row.state, chain_key(keys[parent], contents[child])
        return [(block, keys[parent], contents[key]) for key, (block, parent, _) in zip(found, entries, strict=True)]

    def _hide(self, entry: Entry, keys: dict[bytes, bytes]) -> Entry:
        """No name and no key of a prefix stays what it is, wherever it stands."""
        if entry.of in ("Request", "PrefixIndex", "Policy"):
            return entry
        return Entry(entry.of, {name: self._hidden(value, keys) for name, value in entry.fields.items()})

    def _hidden(self, value: Any, keys: dict[bytes, bytes]) -> Any:
        kind = type(value)
        if kind is str:
            return value if value in _WORDS else self.name(value)
        if kind is list:
            return [self._hidden(item, keys) for item in value]
        if kind is not dict:
            return value
        ((tag, content),) = value.items()
        if tag == "bytes":
            return {tag: keys[bytes.fromhex(content)].hex()}
        if tag in ("tuple", "deque"):
            return {tag: [self._hidden(item, keys) for item in content]}
        if tag in ("set", "frozenset"):
            return {tag: sorted(self._hidden(item, keys) for item in content)}
        return value  # names of classes, numbers, places

    # ------------------------------------------------------------ hashes

    def _follow(self, row: Row, tokens: Seq[int] | memoryview[int]) -> list[int]:
        """Pseudo-tokens of a sequence's next tokens, none of which ends it."""
        hidden = [0] * len(tokens)
        done = 0
        while done < len(tokens):
            missing = min(GROUP - len(row.group), self._block_size - row.offset)
            added = tokens[done : done + missing]
            row.group.extend(added)
            row.offset += len(added)
            done += len(added)
            if len(added) == missing:
                hidden[done - 1] = self._close(row)
        return hidden

    def _close(self, row: Row) -> int:
        """The pseudo-token of the last token of a group."""
        hashed = self._token_hash.copy()
        hashed.update(row.state + block_content(row.group))
        row.group.clear()
        row.offset %= self._block_size
        row.state = hashed.digest()
        return int.from_bytes(row.state[:4], "little") | _TOKEN_BIT

    def _end_id(self, token: int) -> int:
        found = self._end_ids.get(token)
        if found is None:
            hashed = int.from_bytes(self._hash("end", token.to_bytes(4, "little"))[:4], "little")
            found = self._end_ids[token] = hashed % _END_BIT | _END_BIT
        return found

    def _root_state(self, root: bytes) -> bytes:
        """What stands before the first token, from the root of the chain of prefix keys."""
        return self._hash("token", root)

    def _salt(self, root: bytes) -> bytes:
        return self._hash("salt", root)

    def _hash(self, what: str, data: bytes) -> bytes:
        hashed = self._hashes[what].copy()
        hashed.update(data)
        return hashed.digest()

"""Pseudo-tokens: a journal that replays alike, and from which no prompt, answer or name can be read.

    token of a prompt or answer    bit 31 and 31 bits of a keyed hash of the salt and of all tokens up to itself
    token id that ends answers     bit 30 and 30 bits of a keyed hash of itself
    salt, name                     a keyed hash

So two sequences have equal pseudo-tokens exactly as far as they have a common beginning under a common salt, which is
all that a scheduler ever compares; and an answer ends with the token that ends it. Equal tokens at other places, or
after other beginnings, have nothing in common: nothing can be counted. The key is random, lives as long as the process
and is written nowhere.

Source: ours; the hash is BLAKE2b, RFC 7693, with its key.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
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
_WORDS = frozenset({"", TTFT, E2E, EVERYBODY})
"""Strings in a snapshot that are ours, and neither names nor content."""


class Row:
    """What the tokens of one sequence so far have come to, and which tokens end it."""

    __slots__ = ("ends", "state")

    def __init__(self, state: bytes, ends: frozenset[int]) -> None:
        self.state = state
        self.ends = ends


class Disguise:
    """Follows every sequence from its prompt to its end. `secret` is a key of 32 bytes."""

    def __init__(self, secret: bytes) -> None:
        self._hashes = {
            what: blake2b(key=secret, digest_size=16, person=what.encode()) for what in ("token", "end", "salt", "name")
        }
        self._token_hash = self._hashes["token"]
        self._end_ids: dict[int, int] = {}
        self._rows: dict[int, Row] = {}
        """By slot, as an executor has them."""
        self._sequences: dict[tuple[int, int], Row] = {}

    # ------------------------------------------------------------ inputs

    def request(self, request: Request) -> Request:
        """The same as far as scheduling goes."""
        row = Row(self._root_state(root_key(request.salt)), frozenset())
        prompt = [self._next(row, token) for token in request.prompt]
        params = request.params
        ends = params.stop_token_ids if params.ignore_eos else params.stop_token_ids + request.eos_token_ids
        for choice in range(request.n):
            self._sequences[request.id, choice] = Row(row.state, frozenset(ends))
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

    def tokens(self, plan: StepPlan, tokens: Sequence[int]) -> list[int]:
        """What a step sampled, parallel to the plan's sampling rows."""
        rows = self._rows
        sampling = [rows[slot] for slot in plan.decodes]
        sampling += [rows[chunk.slot] for chunk in plan.chunks if chunk.samples]
        follow = self._next
        return [
            follow(row, token) if 0 <= token < VOCAB_SIZE else -1 for row, token in zip(sampling, tokens, strict=True)
        ]

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
        requests = {place: e.fields["request"] for place, e in enumerate(entries) if e.of == "Request"}
        disguised = {place: self.request(request) for place, request in requests.items()}
        keys: dict[bytes, bytes] = {}
        result: list[Entry] = []
        block_size = next(entry.fields["block_size"] for entry in entries if entry.of == "KVCache")
        for place, entry in enumerate(entries):
            if place in disguised:
                result.append(Entry("Request", {"request": disguised[place]}))
            elif entry.of == "PrefixIndex":
                result.append(Entry("PrefixIndex", {"entries": self._index(entry.fields["entries"], keys)}))
            elif entry.of == "Sequence":
                at = entry.fields["request"]["ref"]
                result.append(self._sequence(entry, requests[at], disguised[at], block_size, keys))
            elif entry.of == "Scheduler":
                result.append(Entry(entry.of, {**entry.fields, "_vocab_size": VOCAB_SIZE}))
            else:
                result.append(entry)
        return [self._hide(entry, keys) for entry in result]

    def _sequence(
        self, entry: Entry, request: Request, disguised: Request, block_size: int, keys: dict[bytes, bytes]
    ) -> Entry:
        fields = dict(entry.fields)
        output, slot = fields["output"], fields["slot"]
        row = self._sequences[request.id, fields["choice"]]
        fields["output"] = [self._next(row, token) for token in output]
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
                row = Row(states[parent], frozenset())
                contents[child] = block_content([self._next(row, token) for token in memoryview(content).cast("I")])
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

    def _next(self, row: Row, token: int) -> int:
        """The pseudo-token of a sequence's next token."""
        if token in row.ends:
            return self._end_id(token)
        hashed = self._token_hash.copy()
        hashed.update(row.state + token.to_bytes(4, "little"))
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

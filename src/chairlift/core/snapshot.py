"""The whole state of a scheduler as plain data, and a scheduler from it: where a segment of a journal begins.

Every object becomes one entry of a list, its fields by name; objects refer to each other by their place in the list,
the scheduler being the first. No field is named here that needs no care of its own, so none can be forgotten when one
is added. The classes are a closed list, on the way out and on the way in: an object of any other class is an error.

    None, bool, int, str, finite float      themselves
    list                                    a list
    anything else                           {"tuple": [...]}, {"enum": [class, name]}, {"ref": place} ...

A snapshot is taken between two steps. What is only derived (prefix keys, the tokens of the prompt, the token ids that
end a sequence) is left out and made again; entries of heaps that count no longer are left out for good.
"""

from __future__ import annotations

from base64 import b64decode
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from functools import partial
from math import isfinite
from operator import attrgetter
from typing import Any

from chairlift.core.batching import Continuous, Gathered
from chairlift.core.blocks import BlockPool
from chairlift.core.controller import Controller
from chairlift.core.deadlines import Deadlines
from chairlift.core.fairness import Counters, Fair, Service
from chairlift.core.kv import KVCache
from chairlift.core.ordering import Sorted, Waiting
from chairlift.core.planner import Planner
from chairlift.core.policy import Policy
from chairlift.core.prefix import Key, PrefixIndex, begin_chain, content_at, key_after, root_key
from chairlift.core.running import RunningSet
from chairlift.core.scheduler import Scheduler
from chairlift.core.sequence import Sequence, State, StopMatcher
from chairlift.core.steptime import StepTimes
from chairlift.core.types import (
    CacheShape,
    Decisions,
    Finish,
    FinishReason,
    Limits,
    PreemptReason,
    Request,
    StepOutput,
    WaitReason,
)
from chairlift.core.waits import WaitClocks

MatcherFactory = Callable[[Request, int], StopMatcher | None]
"""Gives the watcher of one choice of a request."""

CLASSES: tuple[type, ...] = (
    Scheduler,
    BlockPool,
    Continuous,
    Controller,
    Counters,
    Deadlines,
    Decisions,
    Fair,
    Finish,
    Gathered,
    KVCache,
    Limits,
    Planner,
    Policy,
    PrefixIndex,
    RunningSet,
    Sequence,
    Service,
    Sorted,
    StepOutput,
    StepTimes,
    WaitClocks,
    Waiting,
)
"""Objects that a scheduler is made of; `Request` is kept as it is."""

ENUMS: tuple[type[Enum], ...] = (State, FinishReason, WaitReason, PreemptReason)

DERIVED = frozenset({"tokens", "chain", "matcher", "ends"})
"""Fields of a sequence that are made again."""

FLAT = {BlockPool: ("_refs", "_blank"), RunningSet: ("free_slots", "slots", "fillers"), Sequence: ("blocks",)}
"""Lists of integers that may be long: copied at once instead of item by item."""

HEAPS = {Deadlines: ("_heap",), Sorted: ("_heap",), Waiting: ("_dues",)}
"""Heaps with entries of what left meanwhile: those hold on to sequences and requests that are over."""

_KINDS: dict[str, type] = {kind.__name__: kind for kind in CLASSES}
_ENUM_KINDS = {kind.__name__: kind for kind in ENUMS}
_PLAIN = frozenset({type(None), bool, int, str})
_OBJECTS = frozenset({*CLASSES, Request, dict, OrderedDict})


def _names(kind: type) -> tuple[str, ...]:
    """Fields of a class with slots, as far as a snapshot keeps them one by one."""
    skipped = {*FLAT.get(kind, ()), *HEAPS.get(kind, ()), *(DERIVED if kind is Sequence else ())}
    return tuple(name for name in vars(kind)["__slots__"] if name not in skipped)


_NAMES = {kind: _names(kind) for kind in CLASSES if hasattr(kind, "__slots__")}
_GETTERS = {kind: attrgetter(*names) for kind, names in _NAMES.items() if len(names) > 1}


@dataclass(slots=True)
class Entry:
    """One object: the name of its class, and its fields."""

    of: str
    fields: dict[str, Any]


# ---------------------------------------------------------------- taking


def capture(scheduler: Scheduler) -> list[Entry]:
    """The state of a scheduler between two steps. It shares nothing with the scheduler that will change.

    Raises:
        RuntimeError: a step is in flight.
        TypeError: the scheduler holds something that has no place in a snapshot.
    """
    if scheduler._planned is not None:
        raise RuntimeError("a snapshot is taken between steps")
    taking = _Taking(scheduler)
    taking.place_of(scheduler)
    for one in taking.found:  # grows as it goes
        taking.entries.append(taking.entry(one))
    return taking.entries


class _Taking:
    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self.entries: list[Entry] = []
        self.found: list[Any] = []
        self._places: dict[int, int] = {}
        self._lists: set[int] = set()

    def place_of(self, one: Any) -> int:
        place = self._places.get(id(one))
        if place is None:
            place = self._places[id(one)] = len(self.found)
            self.found.append(one)
        return place

    def entry(self, one: Any) -> Entry:
        kind = type(one)
        value = self._value
        if kind is Request:
            return Entry("Request", {"request": one})
        if kind is dict or kind is OrderedDict:
            return Entry(kind.__name__, {"items": [[value(k), value(v)] for k, v in one.items()]})
        if kind is PrefixIndex:
            return Entry("PrefixIndex", {"entries": list(one._blocks.values())})
        fields: dict[str, Any] = {name: list(getattr(one, name)) for name in FLAT.get(kind, ())}
        getter = _GETTERS.get(kind)
        if getter is not None:
            values = [v if type(v) in _PLAIN else value(v) for v in getter(one)]
            fields.update(zip(_NAMES[kind], values, strict=True))
        elif kind in _NAMES:
            fields.update((name, value(getattr(one, name))) for name in _NAMES[kind])
        else:
            # What hides a method is somebody's probe, and no state.
            fields.update((name, value(field)) for name, field in vars(one).items() if not hasattr(kind, name))
        for name in HEAPS.get(kind, ()):
            fields[name] = [value(item) for item in self._counting(one)]
        if kind is Sequence:
            fields["output"] = one.tokens[one.num_prompt :]
            fields["num_chained"] = len(one.chain)
            fields["is_watched"] = one.matcher is not None
        return Entry(kind.__name__, fields)

    def _counting(self, one: Deadlines | Sorted | Waiting) -> list[Any]:
        """Entries of a heap that are of somebody who is still there, sorted, which is a heap as well."""
        if isinstance(one, Deadlines):
            return sorted(entry for entry in one._heap if self._scheduler._is_live(entry[3]))
        if isinstance(one, Sorted):
            return sorted(entry for entry in one._heap if one._places.get(entry[2]) == entry[1])
        return sorted(due for due in one._dues if due[2].waits_since is not None and due[2].ages_at == due[0])

    def _value(self, value: Any) -> Any:
        kind = type(value)
        if kind in _PLAIN:
            return value
        if kind is float:
            return value if isfinite(value) else {"float": repr(value)}
        if kind is tuple:
            return {"tuple": [item if type(item) in _PLAIN else self._value(item) for item in value]}
        if kind in _OBJECTS:
            return {"ref": self.place_of(value)}
        if kind is list:
            if id(value) in self._lists:
                raise TypeError("two objects share a list")
            self._lists.add(id(value))
            return [self._value(item) for item in value]
        return self._compound(kind, value)

    def _compound(self, kind: type, value: Any) -> Any:
        if kind is deque:
            return {"deque": [self._value(item) for item in value]}
        if kind in ENUMS:
            return {"enum": [kind.__name__, value.name]}
        if kind is bytes:
            return {"bytes": value.hex()}
        if kind in (set, frozenset):
            return {kind.__name__: [self._value(item) for item in sorted(value)]}
        if value in CLASSES:
            return {"class": value.__name__}
        if kind is partial and value.func in CLASSES and not value.keywords:
            return {"partial": [value.func.__name__, *(self._value(item) for item in value.args)]}
        raise TypeError(f"{kind.__module__}.{kind.__qualname__} has no place in a snapshot")


# ---------------------------------------------------------------- restoring


def restore(entries: list[Entry], matchers: MatcherFactory) -> Scheduler:
    """The scheduler that a snapshot was taken of, also if the snapshot went through JSON.

    Raises:
        ValueError: not a snapshot, or one of a scheduler with other fields.
    """
    try:
        _check_fields(entries)
        shells = [_shell(entry) for entry in entries]
        restoring = _Restoring(shells)
        for entry, shell in zip(entries, shells, strict=True):
            if entry.of == "Sequence":
                restoring.begin_sequence(entry, shell, matchers)
        for entry, shell in zip(entries, shells, strict=True):
            restoring.fill(entry, shell)
        for shell in shells:
            if isinstance(shell, Sequence):
                _restore_chain(shell, shells[0].kv.block_size)
    except (KeyError, IndexError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise ValueError(f"not a snapshot of a scheduler: {type(error).__name__}: {error}") from error
    scheduler = shells[0] if shells else None
    if not isinstance(scheduler, Scheduler):
        raise ValueError("a snapshot starts with the scheduler")
    return scheduler


def _check_fields(entries: list[Entry]) -> None:
    """Every object has the fields that it has here."""
    fresh = capture(Scheduler(Limits(1, 1, 2), CacheShape(1, 1), vocab_size=1))
    wanted = {entry.of: set(entry.fields) for entry in fresh}
    wanted |= {k.__name__: {*n, *FLAT.get(k, ()), *HEAPS.get(k, ())} for k, n in _NAMES.items()}
    wanted["Sequence"] |= {"output", "num_chained", "is_watched"}
    wanted["PrefixIndex"] = {"entries"}
    for entry in entries:
        if entry.fields.keys() != wanted.get(entry.of, entry.fields.keys()):
            raise ValueError(f"a snapshot of a {entry.of} with other fields: taken by another version")


def _shell(entry: Entry) -> Any:
    """An object whose fields are still to come."""
    if entry.of == "Request":
        return entry.fields["request"]
    if entry.of == "dict":
        return {}
    if entry.of == "OrderedDict":
        return OrderedDict()
    kind: Any = _KINDS[entry.of]
    return kind.__new__(kind)


class _Restoring:
    def __init__(self, shells: list[Any]) -> None:
        self._shells = shells

    def begin_sequence(self, entry: Entry, sequence: Sequence, matchers: MatcherFactory) -> None:
        fields = entry.fields
        request, choice = self._value(fields["request"]), fields["choice"]
        matcher = matchers(request, choice) if fields["is_watched"] else None
        Sequence.__init__(sequence, request, choice, self._value(fields["order"]), fields["end"], matcher)

    def fill(self, entry: Entry, shell: Any) -> None:
        fields = dict(entry.fields)
        if entry.of == "Request":
            return
        if entry.of in ("dict", "OrderedDict"):
            for key, value in fields["items"]:
                shell[self._value(key)] = self._value(value)
            return
        if entry.of == "PrefixIndex":
            PrefixIndex.__init__(shell)
            for block, parent, content in fields["entries"]:
                parent, content = _key(parent), _key(content)
                shell.publish(block, key_after(parent, content), parent, content)
            return
        if entry.of == "Sequence":
            shell.tokens.extend(fields.pop("output"))
            shell.chain = [b""] * min(fields.pop("num_chained"), len(shell.tokens) + 1)
            del fields["is_watched"]
        for name, value in fields.items():
            object.__setattr__(shell, name, self._value(value))  # some are frozen

    def _value(self, value: Any) -> Any:
        if type(value) is list:
            return [self._value(item) for item in value]
        if type(value) is not dict:
            return value
        ((tag, content),) = value.items()
        match tag:
            case "ref":
                return self._shells[content]
            case "tuple":
                return tuple(self._value(item) for item in content)
            case "enum":
                kind, name = content
                return _ENUM_KINDS[kind][name]
            case "float":
                return float(content)
            case "bytes":
                return bytes.fromhex(content)
            case "deque":
                return deque(self._value(item) for item in content)
            case "set":
                return {self._value(item) for item in content}
            case "frozenset":
                return frozenset(self._value(item) for item in content)
            case "class":
                return _KINDS[content]
            case "partial":
                return partial(_KINDS[content[0]], *(self._value(item) for item in content[1:]))
        raise ValueError(f"unknown kind of value: {tag}")


def _key(value: str | bytes | int) -> bytes | int:
    """A key or a content, as taken or as it comes out of JSON."""
    return b64decode(value) if isinstance(value, str) else value


def _restore_chain(sequence: Sequence, block_size: int) -> None:
    """Prefix keys of the blocks that were hashed already."""
    num_chained = len(sequence.chain)
    sequence.chain = begin_chain(sequence.request)[:num_chained]
    for i in range(len(sequence.chain) - 1, num_chained - 1):
        content = content_at(sequence.request, sequence.tokens, i, block_size)
        sequence.chain.append(key_after(sequence.chain[i], content))


# ---------------------------------------------------------------- what cannot be reached


def forget_unreachable(scheduler: Scheduler, roots: set[bytes]) -> set[bytes]:
    """Drop entries of the prefix index that no prompt can find, since a block before them was evicted or distrusted.

    `roots` are the roots of all requests so far. Gives those that something still hangs on. Blocks that were kept for
    such an entry become blank.
    """
    index, pool = scheduler.kv.index, scheduler.kv.pool
    reached: dict[Key, bool] = dict.fromkeys(roots, True)
    for last in index._blocks:
        path, key = [], last
        while key not in reached and key in index._blocks:
            path.append(key)
            key = index._blocks[key][1]
        reached.update(dict.fromkeys(path, reached.get(key, False)))
    used = roots & {parent for _, parent, _ in index._blocks.values()}
    used.update(root_key(s.request.salt) for sequences in scheduler._live.values() for s in sequences)
    for block in [entry[0] for key, entry in index._blocks.items() if not reached[key]]:
        index.forget(block)
        if pool.refs(block) == 0:
            pool.retain([block])
            pool.drop([block], keep=())
    return used

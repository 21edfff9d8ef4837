"""The flags that say what simulated engines are asked: drawn requests, several tenants, or a recorded trace."""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any, get_args

from chairlift.cli.config import flag_of
from chairlift.cli.numbers import count
from chairlift.core.errors import InvalidOption
from chairlift.sim.arrivals import Arrivals, GapName, on_off, parse_phases, steady
from chairlift.sim.lengths import parse_lengths
from chairlift.sim.traces.agentic import agent_sessions
from chairlift.sim.traces.batchfile import Encode, batch_file, words
from chairlift.sim.traces.mooncake import mooncake
from chairlift.sim.traces.reading import rows
from chairlift.sim.traces.servegen import servegen
from chairlift.sim.traces.tables import azure, column_counts, drawn, timed
from chairlift.sim.traffic import ClosedLoop, Kind, faster, merged, open_loop, until, without_contents
from chairlift.sim.workload import Asked, Contents, Workload

TRACES = ("mooncake", "azure", "timed", "lengths", "servegen", "sessions", "batch")
DEFAULT_NUM_PROMPTS = 1000


def add_workload_flags(parser: argparse.ArgumentParser) -> None:
    """Flags of the workload."""
    group = parser.add_argument_group("workload", "Drawn from distributions, or read from a trace; equal for a seed.")
    group.add_argument(
        "--num-prompts",
        type=count,
        metavar="N",
        help="requests of each tenant; conversations or sessions, where there are (default: "
        f"{DEFAULT_NUM_PROMPTS} if drawn without --duration, all of a trace)",
    )
    group.add_argument("--duration", type=float, metavar="SECONDS", help="only what arrives within so many seconds")
    group.add_argument("--seed", type=int, metavar="N", help="of all that is drawn (default: 0)")
    _add_arrival_flags(parser)
    _add_request_flags(parser)
    group = parser.add_argument_group("trace")
    group.add_argument("--trace", type=Path, metavar="PATH", help="a recorded workload, instead of a drawn one")
    group.add_argument(
        "--trace-format",
        choices=TRACES,
        help="mooncake: JSON lines with hash_ids; azure: TIMESTAMP and token counts; timed: lengths and arrivals in "
        "seconds; lengths: a table of lengths, at drawn arrivals; servegen: a folder of clients; sessions: of agents, "
        "begun at drawn arrivals; batch: the OpenAI batch format, all at once if no rate is given (default: by what "
        "is in the file)",
    )
    group.add_argument("--speed-up", type=float, default=1.0, metavar="F", help="arrivals come F times as fast")
    group.add_argument(
        "--tokenizer",
        metavar="MODEL",
        help="batch: a model whose tokenizer counts prompts (default: words stand for tokens)",
    )
    group.add_argument("--start", type=float, default=0.0, metavar="SECONDS", help="servegen: from there on")
    group.add_argument(
        "--max-think-s", type=float, default=math.inf, metavar="SECONDS", help="sessions: longest pause (default: none)"
    )
    group.add_argument(
        "--shared-prefixes",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="prompts begin alike where the trace says so (default: on)",
    )


def _add_arrival_flags(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("arrivals")
    group.add_argument("--request-rate", type=float, metavar="RPS", help="a second (default: 1)")
    group.add_argument(
        "--arrivals",
        choices=get_args(GapName),
        default="poisson",
        help="gaps between arrivals: exponential, gamma with --burstiness, or all equal (default: %(default)s)",
    )
    group.add_argument(
        "--burstiness",
        type=float,
        default=1.0,
        metavar="B",
        help="shape of gamma gaps: below 1 in bursts, above 1 steadier (default: 1)",
    )
    group.add_argument(
        "--on-off", metavar="ON:OFF", help="the rate for ON seconds, then nothing for OFF seconds, and again"
    )
    group.add_argument(
        "--rate-phases",
        metavar="S:RATE,...",
        help="instead of one rate: phases of seconds and a rate, or two to move between, such as 60:2,30:2-10,inf:10",
    )
    group.add_argument(
        "--users", type=count, metavar="N", help="instead of arrivals: N users who each ask, wait and think"
    )
    group.add_argument(
        "--think-time",
        type=float,
        default=0.0,
        metavar="SECONDS",
        help="mean pause of users, and between the turns of a conversation (default: 0)",
    )


def _add_request_flags(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group(
        "requests", "Lengths are N, uniform:LOW:HIGH, lognormal:MEDIAN:SIGMA[:MOST] or empirical:FILE[:COLUMN]."
    )
    group.add_argument("--prompt", default="1000", metavar="LENGTHS", help="tokens of a prompt (default: %(default)s)")
    group.add_argument("--output", metavar="LENGTHS", help="tokens of an answer (default: lognormal:90:1:2000)")
    group.add_argument(
        "--prefix", type=count, default=0, metavar="TOKENS", help="in front of every prompt, always the same"
    )
    group.add_argument("--turns", default="1", metavar="LENGTHS", help="of a conversation (default: 1)")
    group.add_argument("--priority", type=int, default=0, metavar="N", help="lower goes first (default: 0)")
    group.add_argument("--ttft-deadline-ms", type=float, metavar="MS", help="a first token later is none")
    group.add_argument("--e2e-deadline-ms", type=float, metavar="MS", help="an end later is none")
    group.add_argument(
        "--tenant",
        action="append",
        metavar="NAME,FLAG=VALUE,...",
        help="a stream of its own beside others, such as chat,request-rate=3,prompt=200,priority=1: NAME is its "
        "principal, and it differs from the flags of the command in these; may be repeated",
    )


OUTPUT = "lognormal:90:1:2000"


@dataclass(frozen=True, slots=True)
class _Stream:
    """The flags that a tenant may have for itself."""

    request_rate: float | None
    arrivals: GapName
    burstiness: float
    on_off: str | None
    rate_phases: str | None
    users: int | None
    think_time: float
    prompt: str
    output: str | None
    prefix: int
    turns: str
    priority: int
    ttft_deadline_ms: float | None
    e2e_deadline_ms: float | None
    num_prompts: int | None
    principal: str = ""


_RATE = ("request_rate", "on_off", "rate_phases")
_ARRIVALS = (*_RATE, "arrivals", "burstiness")
_REQUESTS = ("prompt", "output", "prefix", "turns", "think_time", "priority", "ttft_deadline_ms", "e2e_deadline_ms")
_TRACES_ONLY = ("trace_format", "tokenizer", "start", "max_think_s")
_HEEDED: dict[str, tuple[str, ...]] = {
    "lengths": _ARRIVALS,
    "servegen": ("start",),
    "sessions": (*_ARRIVALS, "max_think_s"),
    "batch": (*_ARRIVALS, "output", "tokenizer"),
}
"""Of the flags of drawn requests and of single formats, those that a format of traces heeds; the others say all."""


def check_workload(arguments: argparse.Namespace, *, rate_is_asked: bool = False) -> None:
    """Raises InvalidOption for flags that would be of no effect; `rate_is_asked` if --request-rate is about something
    else than arrivals."""
    given = set(given_flags(arguments, (*_ARRIVALS, *_REQUESTS, *_TRACES_ONLY))) - {"trace_format"}
    if rate_is_asked:
        given.discard("request_rate")
    rates = [name for name in _RATE if name in given]
    if "rate_phases" in rates and len(rates) > 1:
        raise InvalidOption("--rate-phases says all about the rate: leave out --request-rate and --on-off")
    if "burstiness" in given and arguments.arrivals == "constant":
        raise InvalidOption("--burstiness is of gamma gaps: leave it out, or --arrivals constant")
    if arguments.trace is not None:
        name = _trace_format(arguments)
        idle, why = given - set(_HEEDED.get(name, ())), f"a trace ({name}) says that itself"
        if idle & set(_RATE):
            why += ", and --speed-up changes its pace"
    else:
        idle, why = given & set(_TRACES_ONLY), "there is no --trace that it could be about"
        if arguments.users is not None and not arguments.tenant and given & set(_ARRIVALS):
            idle, why = given & set(_ARRIVALS), "--users ask when they have their answer"
    if idle:
        flags = ", ".join(map(flag_of, sorted(idle)))
        raise InvalidOption(f"leave out {flags}: {why}")


def given_flags(arguments: argparse.Namespace, names: Iterable[str]) -> list[str]:
    """Those of these that are not as they are by default."""
    default = arguments.parser.get_default
    return [name for name in names if getattr(arguments, name) != default(name)]


def workload(arguments: argparse.Namespace) -> Workload:
    """What these flags ask. Files are read as the run gets there.

    Raises:
        InvalidOption: flags that make no sense together, a value out of range, or a file that cannot be used.
    """
    if arguments.duration is not None and not arguments.duration > 0.0:
        raise InvalidOption("--duration must be above 0")
    seed = arguments.seed or 0
    asked = _traced(arguments, seed) if arguments.trace is not None else _drawn(arguments, seed)
    if arguments.speed_up != 1.0:
        asked = faster(asked, arguments.speed_up)
    if not arguments.shared_prefixes:
        asked = without_contents(asked)
    return asked if arguments.duration is None else until(asked, arguments.duration)


def _drawn(arguments: argparse.Namespace, seed: int) -> Workload:
    names = [field.name for field in fields(_Stream) if field.name != "principal"]
    common = _Stream(**{name: getattr(arguments, name) for name in names})
    if arguments.num_prompts is None and arguments.duration is None:
        common = replace(common, num_prompts=DEFAULT_NUM_PROMPTS)
    contents = Contents()
    if not arguments.tenant:
        return _stream(common, contents, seed)
    streams = [_tenant(common, text) for text in arguments.tenant]
    if len({stream.principal for stream in streams}) < len(streams):
        raise InvalidOption("two tenants have the same name")
    return merged(_stream(stream, contents, seed) for stream in streams)


def _tenant(common: _Stream, text: str) -> _Stream:
    """A tenant's own stream: NAME,flag=value,..."""
    name, *items = (item.strip() for item in text.split(","))
    if not name or "=" in name:
        raise InvalidOption(f"--tenant begins with a name: {text!r}")
    known = {field.name: getattr(common, field.name) for field in fields(_Stream)}
    values: dict[str, Any] = {"principal": name}
    for item in items:
        key, equals, value = item.partition("=")
        key = key.replace("-", "_")
        if not equals or key not in known or key in ("principal", "rate_phases"):
            raise InvalidOption(f"--tenant {name}: no flag of a tenant: {item!r}")
        values[key] = _value(key, value, f"--tenant {name}: {item!r}")
    return replace(common, **values)


_WHOLE = ("users", "prefix", "priority", "num_prompts")
_REAL = ("request_rate", "burstiness", "think_time", "ttft_deadline_ms", "e2e_deadline_ms")


def _value(key: str, text: str, where: str) -> object:
    try:
        if key in _WHOLE:
            number = int(text)
            if number < 0 and key != "priority":
                raise InvalidOption(f"{where} must be at least 0")
            return number
        return float(text) if key in _REAL else text
    except ValueError as error:
        raise InvalidOption(f"{where} must be a number") from error


def _stream(flags: _Stream, contents: Contents, seed: int) -> Workload:
    kind = Kind(
        name=flags.principal,
        principal=flags.principal,
        prompt=parse_lengths(flags.prompt, column_counts),
        output=parse_lengths(flags.output or OUTPUT, column_counts),
        prefix=flags.prefix,
        turns=parse_lengths(flags.turns, column_counts),
        think_s=flags.think_time,
        priority=flags.priority,
        ttft_within_s=_seconds(flags.ttft_deadline_ms),
        e2e_within_s=_seconds(flags.e2e_deadline_ms),
    )
    if flags.users is not None:
        # Without a number they ask until --duration is over, which cuts what follows answers as well.
        num_requests = sys.maxsize if flags.num_prompts is None else flags.num_prompts
        return ClosedLoop(kind, flags.users, flags.think_time, contents, seed, num_requests)
    return open_loop(kind, _arrivals(flags), contents, seed, flags.num_prompts)


def _seconds(milliseconds: float | None) -> float | None:
    if milliseconds is not None and not 0.0 < milliseconds < math.inf:
        raise InvalidOption("a deadline must be above 0 ms")
    return None if milliseconds is None else milliseconds / 1e3


def _arrivals(flags: Any) -> Arrivals:
    gaps: GapName = "gamma" if flags.burstiness != 1.0 and flags.arrivals == "poisson" else flags.arrivals
    if flags.rate_phases is not None:
        return Arrivals(parse_phases(flags.rate_phases), gaps, flags.burstiness)
    rate = 1.0 if flags.request_rate is None else flags.request_rate
    if flags.on_off is None:
        return Arrivals(steady(rate), gaps, flags.burstiness)
    on, colon, off = flags.on_off.partition(":")
    try:
        phases = on_off(rate, float(on), float(off if colon else ""))
    except ValueError as error:
        raise InvalidOption(f"--on-off takes seconds such as 10:30, not {flags.on_off!r}") from error
    return Arrivals(phases, gaps, flags.burstiness, repeats=True)


# ---------------------------------------------------------------- traces


def _traced(arguments: argparse.Namespace, seed: int) -> Workload:
    if arguments.tenant or arguments.users is not None:
        raise InvalidOption("a trace says who asks when: leave out --tenant and --users")
    path: Path = arguments.trace
    name = _trace_format(arguments)
    asked: Iterable[Asked]
    match name:
        case "mooncake":
            asked = mooncake(path)
        case "azure":
            asked = azure(path)
        case "timed":
            asked = timed(path)
        case "lengths":
            asked = drawn(path, _arrivals(arguments), _num_drawn(arguments), seed)
        case "servegen":
            duration_s = math.inf if arguments.duration is None else arguments.duration * arguments.speed_up
            asked = servegen(path, seed=seed, start_s=arguments.start, duration_s=duration_s)
        case "sessions":
            starts = _arrivals(arguments).times(Random(f"{seed}/sessions"))
            asked = agent_sessions(path, starts, max_think_s=arguments.max_think_s)
        case _:
            asked = _batch(arguments, path, seed)
    return asked if arguments.num_prompts is None else islice(asked, arguments.num_prompts)


def _trace_format(arguments: argparse.Namespace) -> str:
    """Raises InvalidOption if there is no such file, or nobody knows what it is."""
    path: Path = arguments.trace
    if not path.exists():
        raise InvalidOption(f"{path}: there is no such file")
    return arguments.trace_format or guess_format(path)


def _batch(arguments: argparse.Namespace, path: Path, seed: int) -> Iterable[Asked]:
    """All at once, unless a rate is given."""
    is_drawn = any(value is not None for value in (arguments.request_rate, arguments.rate_phases, arguments.on_off))
    return batch_file(
        path,
        output=None if arguments.output is None else parse_lengths(arguments.output, column_counts),
        seed=seed,
        encode=words if arguments.tokenizer is None else _encoder(arguments.tokenizer),
        arrivals=_arrivals(arguments).times(Random(f"{seed}/arrivals")) if is_drawn else None,
    )


def _encoder(name: str) -> Encode:
    """Tokens of a text by a model's tokenizer, counted from 1: 0 is what simulated answers consist of."""
    from chairlift.models.fetch import fetched_text
    from chairlift.text.loading import load_text
    from chairlift.worker.loading import getting

    tokenizer = load_text(fetched_text(name, getting)).tokenizer
    return lambda text: [token + 1 for token in tokenizer.encode(text)]


def _num_drawn(arguments: argparse.Namespace) -> int | None:
    if arguments.num_prompts is not None or arguments.duration is not None:
        return None if arguments.num_prompts is None else int(arguments.num_prompts)
    return DEFAULT_NUM_PROMPTS


def guess_format(path: Path) -> str:
    """What a trace is, by what its first line has.

    Raises:
        InvalidOption: nothing known.
    """
    if path.is_dir():
        return "servegen"
    if {".tar", ".tgz", ".zip"} & set(path.suffixes):
        raise InvalidOption(f"{path} is an archive: unpack it, and name the folder or file in it")
    row = next(rows(path), None)
    if row is None:
        raise InvalidOption(f"{path} has no requests")
    names = set(row.values)
    for name, signs in (
        ("mooncake", {"timestamp", "input_length"}),
        ("azure", {"TIMESTAMP"}),
        ("sessions", {"requests", "block_size"}),
        ("batch", {"custom_id", "body"}),
        ("timed", {"arrival_time_ns"}),
        ("timed", {"req_time"}),
        ("timed", {"arrived_at"}),
        ("lengths", {"num_prefill_tokens", "num_decode_tokens"}),
    ):
        if signs <= names:
            return name
    raise InvalidOption(f"{path} looks like no trace that is known: say --trace-format")

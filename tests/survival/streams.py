"""Streams that are held (S6), streams that nobody reads (S11), streams when the server is told to stop (S15)."""

from __future__ import annotations

import asyncio
import signal
import time
from dataclasses import dataclass

from chairlift.metrics.latency import percentile
from server.served import Served, served
from survival.client import Report, Stream, dead_reader, get, metric, resident_kib

HEARTBEAT_S = 0.2
POLL_S = 0.01
NUM_PROBES = 10


@dataclass(frozen=True)
class Held:
    """S6: so many streams at a token each `1 / rate` seconds."""

    num_streams: int = 1000
    seconds: float = 30.0
    rate: float = 2.0


def streams_held(size: Held, *, max_gap_ratio: float = 3.0) -> Report:
    """Nothing lost, nothing malformed, no gap much longer than the others, and little memory for each."""
    worker = {"step_s": 1 / size.rate, "max_num_seqs": size.num_streams, "num_blocks": 1 << 20, "heartbeat_s": 1}
    with served(worker, log_requests=False) as server:
        num_tokens = max(2, round(size.seconds * size.rate))
        before = resident_kib(server.process.pid)
        streams = [Stream([number % 200, number // 200], num_tokens) for number in range(size.num_streams)]
        peak = asyncio.run(_hold(server, streams))
        server.tell(signal.SIGTERM)
        status = server.status()
    gaps = sorted(gap for stream in streams for gap in stream.gaps())
    median, p99 = percentile(gaps, 50), percentile(gaps, 99)
    lost = sum(not stream.is_whole for stream in streams)
    malformed = sum(stream.num_malformed for stream in streams)
    kib = (peak - before) / size.num_streams
    return {
        "streams": size.num_streams,
        "tokens_each": num_tokens,
        "lost": lost,
        "malformed": malformed,
        "median_gap_s": round(median, 4),
        "p99_gap_s": round(p99, 4),
        "max_gap_s": round(gaps[-1], 4),
        "rss_kib_per_stream": round(kib, 1),
        "exit_status": status,
        "met": not lost and not malformed and p99 <= max_gap_ratio * median and kib <= 64 and status == 0,
    }


async def _hold(server: Served, streams: list[Stream]) -> int:
    """Most memory of the server meanwhile, in KiB."""
    reading = asyncio.gather(*(stream.read(server.port) for stream in streams))
    peak = 0
    while not reading.done():
        peak = max(peak, resident_kib(server.process.pid))
        await asyncio.wait({reading}, timeout=0.2)
    await reading
    return peak


# ---------------------------------------------------------------- S11


@dataclass(frozen=True)
class Dead:
    """S11: so many clients that read nothing of so many tokens, among as many that do."""

    num_clients: int = 50
    num_tokens: int = 10_000
    num_live_tokens: int = 1500


def dead_readers(size: Dead, *, min_share: float = 0.95, slack_kib: int = 0) -> Report:
    """What is kept for them is bounded, they are cut, and the others get what they got before.

    `slack_kib` is what a process may grow by anyway, which counts where there are few to share it.
    """
    num_rows = 2 * size.num_clients
    worker = {"step_s": 0.004, "max_num_seqs": num_rows, "num_blocks": 1 << 22, "max_model_len": 1 << 17}
    with served(worker, log_requests=False) as server:
        report = asyncio.run(_among_dead(server, size))
        server.tell(signal.SIGTERM)
        report["exit_status"] = server.status()
    report["met"] = (
        report["buffered_kib_each"] <= 256 + slack_kib / size.num_clients
        and report["aborted"] == size.num_clients
        and report["aborted_within_s"] <= 30
        and report["share_of_control"] >= min_share
        and report["lost"] == 0
        and report["exit_status"] == 0
    )
    return report


async def _among_dead(server: Served, size: Dead) -> Report:
    pid, port = server.process.pid, server.port
    warm, _ = await _rate(port, size, base=0, others=True)
    control, lost_before = await _rate(port, size, base=1, others=True)
    before = resident_kib(pid)
    began = time.monotonic()
    socks = [dead_reader(port, [250, number], size.num_tokens) for number in range(size.num_clients)]
    watching = asyncio.create_task(_until_aborted(port, pid, size.num_clients, began))
    among, lost = await _rate(port, size, base=2)
    aborted, within_s, peak = await watching
    for sock in socks:
        sock.close()
    return {
        "clients": size.num_clients,
        "buffered_kib_each": round(max(0, peak - before) / size.num_clients, 1),
        "aborted": aborted,
        "aborted_within_s": round(within_s, 2),
        "tokens_per_s": {"warm": round(warm), "control": round(control), "among_dead": round(among)},
        "share_of_control": round(among / control, 3),
        "lost": lost + lost_before,
    }


async def _rate(port: int, size: Dead, base: int, *, others: bool = False) -> tuple[float, int]:
    """Tokens per second of live readers, and how many streams were not whole; with as many others, who read as well."""
    streams = [Stream([base, number], size.num_live_tokens) for number in range(size.num_clients)]
    more = [Stream([base + 9, number], size.num_live_tokens) for number in range(size.num_clients if others else 0)]
    began = time.monotonic()
    reading = asyncio.gather(*(stream.read(port) for stream in more))
    await asyncio.gather(*(stream.read(port) for stream in streams))
    elapsed_s = time.monotonic() - began
    await reading
    return size.num_clients * size.num_live_tokens / elapsed_s, sum(not stream.is_whole for stream in streams)


async def _until_aborted(port: int, pid: int, count: int, began: float) -> tuple[int, float, int]:
    """How many were cut, after how many seconds the last one was, and the most memory meanwhile, in KiB."""
    peak, aborted = 0, 0
    while aborted < count and time.monotonic() - began < 60:
        peak = max(peak, resident_kib(pid))
        aborted = round(await metric(port, "chairlift:slow_readers_total"))
        await asyncio.sleep(0.1)
    return aborted, time.monotonic() - began, peak


# ---------------------------------------------------------------- S15


@dataclass(frozen=True)
class Stops:
    """S15: so many times, a server with so many streams is told to stop."""

    times: int = 5
    num_streams: int = 200
    num_tokens: int = 150


def shutdowns(size: Stops, *, max_ready_s: float = 0.1, max_exit_s: float = 1.0) -> Report:
    """Every stream ends as if nothing had happened, and then the server does; past the limit both say so.

    Where the machine is so busy that asking `/ready` takes longer than the bar anyway, twice that is the bar.
    """
    complete, exit_s, statuses = 0, [], []
    asked_s, ready_s = [], []
    worker = {"step_s": 0.02, "max_num_seqs": size.num_streams, "num_blocks": 1 << 20, "heartbeat_s": HEARTBEAT_S}
    for _ in range(size.times):
        with served(worker, log_requests=False) as server:
            streams = [Stream([number, 1], size.num_tokens) for number in range(size.num_streams)]
            before_s, after_s = asyncio.run(_stopped(server, streams))
            asked_s.append(before_s)
            ready_s.append(after_s)
            statuses.append(server.status())
            exit_s.append(time.monotonic() - max(stream.ended for stream in streams))
            complete += sum(stream.is_whole for stream in streams)
    with served(worker, log_requests=False, shutdown_timeout_s=0.5) as server:
        streams = [Stream([number, 1], 3000) for number in range(size.num_streams)]
        asyncio.run(_stopped(server, streams))
        late = server.status()
    errors = sum(stream.error == "shutting_down" and not stream.is_done for stream in streams)
    return {
        "complete": complete,
        "of": size.times * size.num_streams,
        "ready_503_ms_max": round(max(ready_s) * 1000, 1),
        "ready_200_ms_max": round(max(asked_s) * 1000, 1),
        "exit_after_last_s_max": round(max(exit_s), 3),
        "exit_statuses": statuses,
        "past_the_limit": {"error_events": errors, "of": size.num_streams, "exit_status": late},
        "met": complete == size.times * size.num_streams
        and all(after <= max(max_ready_s, 2 * before) for before, after in zip(asked_s, ready_s, strict=True))
        and max(exit_s) <= max_exit_s
        and set(statuses) == {0}
        and errors == size.num_streams
        and late != 0,
    }


async def _stopped(server: Served, streams: list[Stream]) -> tuple[float, float]:
    """Tell the server to stop when all streams have begun.

    Gives the seconds that an answer to `/ready` took at most just before, and until it said no.
    """
    reading = asyncio.gather(*(stream.read(server.port) for stream in streams))
    for stream in streams:
        await stream.began.wait()
    before_s = 0.0
    for _ in range(NUM_PROBES):
        began = time.monotonic()
        await get(server.port, "/ready")
        before_s = max(before_s, time.monotonic() - began)
    server.tell(signal.SIGTERM)
    began = time.monotonic()
    while (await get(server.port, "/ready"))[0] == 200:
        await asyncio.sleep(POLL_S)
    ready_s = time.monotonic() - began
    await reading
    return before_s, ready_s

"""Recorded workloads: each form in a few lines, what is wrong in them, and the real ones where they are."""

from __future__ import annotations

import gzip
import json
import statistics
import tarfile
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import pytest

from chairlift.core.errors import InvalidOption
from chairlift.sim.arrivals import Arrivals, steady
from chairlift.sim.lengths import Fixed
from chairlift.sim.traces.agentic import agent_sessions
from chairlift.sim.traces.batchfile import batch_file, words
from chairlift.sim.traces.mooncake import mooncake
from chairlift.sim.traces.servegen import servegen
from chairlift.sim.traces.tables import azure, column_counts, drawn, length_pairs, timed
from chairlift.sim.workload import Asked
from measured_runs import shared_traces

TRACES = shared_traces()
needs_traces = pytest.mark.skipif(TRACES is None, reason="../shared/traces is not there")


def lines(path: Path, *values: object) -> Path:
    path.write_text("".join(json.dumps(value) + "\n" for value in values))
    return path


def mooncake_line(**changes: object) -> dict[str, object]:
    return {"timestamp": 27000, "input_length": 1100, "output_length": 7, "hash_ids": [0, 1, 9]} | changes


def test_mooncake_ids_say_what_prompts_share(tmp_path: Path) -> None:
    path = lines(
        tmp_path / "t.jsonl",
        mooncake_line(),
        mooncake_line(timestamp=30000, hash_ids=[0, 1, 10], output_length=0),
        mooncake_line(timestamp=30000, hash_ids=[5, 1, 9], session=3, tenant="x", priority=-1),
    )
    first, second, third = mooncake(path)
    assert (first.arrival, second.arrival, first.num_output, second.num_output) == (0.0, 3.0, 7, 1)
    a, b, c = (asked.prompt.tokens() for asked in (first, second, third))
    assert len(a) == 1100 and a[:1024] == b[:1024] and a[1024] != b[1024]
    assert c[0] != a[0] and c[512:] == a[512:]
    assert (third.session, third.tenant, third.priority) == ("3", "x", -1)


def test_mooncake_without_ids_shares_nothing(tmp_path: Path) -> None:
    line = {"timestamp": 0, "input_length": 20, "output_length": 1}
    tokens = [asked.prompt.tokens()[0] for asked in mooncake(lines(tmp_path / "t.jsonl", line, line))]
    assert tokens[0] != tokens[1]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ({}, "no timestamp"),
        (mooncake_line(timestamp="x"), "timestamp must be a number"),
        (mooncake_line(timestamp=True), "timestamp must be a number"),
        (mooncake_line(input_length=0), "at least 1"),
        (mooncake_line(input_length=1.5), "an integer"),
        (mooncake_line(hash_ids=[1]), "3 blocks, not 1"),
        (mooncake_line(hash_ids=[1, 2, -3]), "block ids"),
        (mooncake_line(hash_ids=[1, 2, 1 << 40]), "block ids"),
        (mooncake_line(hash_ids="abc"), "block ids"),
        (mooncake_line(tenant=[]), "tenant must be a text"),
        ([1], "not a JSON object"),
    ],
)
def test_what_is_wrong_is_said_with_its_line(tmp_path: Path, line: object, message: str) -> None:
    path = lines(tmp_path / "t.jsonl", mooncake_line(), line)
    with pytest.raises(InvalidOption, match=f"t.jsonl:2: .*{message}"):
        list(mooncake(path))


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    broken = tmp_path / "t.jsonl.gz"
    broken.write_bytes(gzip.compress(b'{"timestamp": 0}\n' * 1000)[:40])
    (tmp_path / "latin.jsonl").write_bytes(b"\xe9\n")
    (tmp_path / "text.jsonl").write_text("{")
    for name in ("t.jsonl.gz", "none.jsonl", "latin.jsonl", "text.jsonl", ""):
        with pytest.raises(InvalidOption):
            list(mooncake(tmp_path / name))


def test_azure_times_count_from_the_first(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n"
        "2023-11-16 18:17:03.9799600,4808,10\n2023-11-16 18:18:04.9799600,3,0\n"
    )
    first, second = azure(path)
    assert (first.arrival, first.prompt.num_tokens, first.num_output) == (0.0, 4808, 10)
    assert second.arrival == pytest.approx(61.0) and second.num_output == 1
    path.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\nyesterday,1,1\n")
    with pytest.raises(InvalidOption, match="a date and time"):
        list(azure(path))


def test_tables_with_and_without_times(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("client,prompt_len,output_len,req_time\n1,256,16,0.5\n2,300,9,0.75\n")
    asked = list(timed(path))
    assert [(a.arrival, a.prompt.num_tokens, a.num_output, a.principal) for a in asked] == [
        (0.5, 256, 16, "1"),
        (0.75, 300, 9, "2"),
    ]
    assert list(length_pairs(path)) == [(256, 16), (300, 9)]
    assert list(column_counts(f"{path}:output_len")) == [(16.0, 1.0), (9.0, 1.0)]
    some = list(drawn(path, Arrivals(steady(5.0)), 50, 1))
    assert {(a.prompt.num_tokens, a.num_output) for a in some} == {(256, 16), (300, 9)}
    assert some == list(drawn(path, Arrivals(steady(5.0)), 50, 1))
    with pytest.raises(InvalidOption, match="has no num_prefill_tokens or"):
        list(length_pairs(lines(tmp_path / "x.jsonl", {"a": 1})))


def test_a_batch_file_asks_as_long_as_it_may(tmp_path: Path) -> None:
    def line(number: int, **body: object) -> dict[str, object]:
        return {"custom_id": str(number), "method": "POST", "url": "/v1/completions", "body": body}

    system = {"role": "system", "content": "You are terse."}
    path = lines(
        tmp_path / "b.jsonl",
        line(1, prompt=[5, 6, 7], max_tokens=9, n=2),
        line(2, messages=[system, {"role": "user", "content": "How are you?"}], max_completion_tokens=4),
        line(3, messages=[system, {"role": "user", "content": [{"type": "text", "text": "Who?"}]}], max_tokens=400),
    )
    first, second, third = batch_file(path, output=None)
    assert (first.prompt.tokens(), first.num_output, first.n, first.label) == ([6, 7, 8], 9, 2, "1")
    a, b = second.prompt.tokens(), third.prompt.tokens()
    assert a[:5] == b[:5] and a[5] != b[5] and len(b) == 6
    assert [asked.num_output for asked in batch_file(path, output=Fixed(6))] == [6, 4, 6]
    for body, message in (({"max_tokens": 3}, "asks nothing"), ({"prompt": "x"}, "no max_tokens")):
        with pytest.raises(InvalidOption, match=message):
            list(batch_file(lines(tmp_path / "b.jsonl", line(1, **body)), output=None))


def session() -> dict[str, object]:
    def entry(t: float, think: float, blocks: list[list[int]], tokens: int) -> dict[str, object]:
        return {"t": t, "api": 2.0, "think": think, "in": tokens, "out": 3, "blocks": blocks}

    agent = {"t": 5.0, "requests": [entry(0.0, 0.0, [[8, 8]], 64), entry(3.0, 1.0, [[8, 9]], 128)]}
    return {
        "id": "s",
        "block_size": 64,
        "requests": [
            entry(0.0, 0.0, [[1, 2]], 130),
            agent,
            entry(12.0, 10.0, [[1, 2], [4, 5]], 260),
            entry(20.0, 6.0, [], 10),
        ],
    }


def run_through(asked: Asked, takes_s: float) -> Iterator[tuple[float, int]]:
    """Arrivals and prompt lengths, each answer coming after so long."""
    yield asked.arrival, asked.prompt.num_tokens
    if asked.follow is not None:
        for later in asked.follow(asked.arrival + takes_s):
            yield from run_through(later, takes_s)


def test_sessions_go_on_when_they_are_answered(tmp_path: Path) -> None:
    path = lines(tmp_path / "s.jsonl", session(), session())
    first, second = agent_sessions(path, iter([0.0, 100.0, 200.0]))
    # The agent begins 3 s after the first answer, as it was recorded; the main line 10 s after it.
    assert sorted(run_through(first, 1.0)) == [(0.0, 130), (4.0, 64), (6.0, 128), (11.0, 260), (18.0, 10)]
    assert sorted(run_through(second, 0.0))[-1][0] == 116.0
    assert not set(first.prompt.tokens()) & set(second.prompt.tokens())
    assert max(run_through(next(agent_sessions(path, [0.0], max_think_s=2.0)), 1.0)) == (6.0, 10)


def test_the_blocks_of_a_session_are_its_prompts(tmp_path: Path) -> None:
    (first,) = agent_sessions(lines(tmp_path / "s.jsonl", session()), [0.0])
    assert first.follow is not None
    main = next(asked for asked in first.follow(1.0) if asked.prompt.num_tokens == 260)
    a, b = first.prompt.tokens(), main.prompt.tokens()
    assert a[:128] == b[:128] and a[128] != b[128] and len(b) == 260


def test_what_is_no_session(tmp_path: Path) -> None:
    for change, message in (
        ({"block_size": 0}, "block_size"),
        ({"requests": 3}, "list of objects"),
        ({"requests": [{"t": 0, "in": 5, "out": 1, "blocks": [[3, 1]]}]}, "range of blocks"),
        ({"requests": [{"t": 0, "in": 5, "out": 1, "blocks": [3]}]}, "first, last"),
    ):
        with pytest.raises(InvalidOption, match=message):
            list(agent_sessions(lines(tmp_path / "s.jsonl", session() | change), [0.0]))


def test_servegen_windows(tmp_path: Path) -> None:
    for client, kind in ((0, "Gamma"), (2, "Weibull")):
        windows = f"0,0,0,,0,0\n600,2.0,1,{kind},0.7,1\n1200,4.0,1,{kind},1,1\n"
        (tmp_path / f"chunk-{client}-trace.csv").write_text(windows)
        (tmp_path / f"chunk-{client}-dataset.json").write_text(
            json.dumps({"0": {"input_tokens": "{10: 0.5, 20: 0.5}", "output_tokens": "{5: 1.0}"}})
        )
    asked = list(servegen(tmp_path, seed=3))
    assert [a.arrival for a in asked] == sorted(a.arrival for a in asked)
    assert asked == list(servegen(tmp_path, seed=3))
    counts = [sum(begin <= a.arrival < begin + 600 for a in asked) for begin in (0, 600, 1200, 1800)]
    assert counts[0] == counts[3] == 0
    assert counts[1] == pytest.approx(2400, rel=0.1) and counts[2] == pytest.approx(4800, rel=0.1)
    assert {a.principal for a in asked} == {"client-0", "client-2"}
    assert {a.prompt.num_tokens for a in asked} == {10, 20} and {a.num_output for a in asked} == {5}
    part = list(servegen(tmp_path, seed=3, start_s=700.0, duration_s=100.0))
    assert all(0.0 <= a.arrival < 100.0 for a in part) and len(part) == pytest.approx(400, rel=0.3)


def test_what_is_no_servegen_folder(tmp_path: Path) -> None:
    with pytest.raises(InvalidOption, match="no chunk"):
        servegen(tmp_path, seed=0)
    (tmp_path / "chunk-0-trace.csv").write_text("0,1,1,Gamma,1,1\n")
    with pytest.raises(InvalidOption, match="cannot be read"):
        list(servegen(tmp_path, seed=0))
    lengths = {"input_tokens": "{__import__: 1}", "output_tokens": "{1: 1}"}
    (tmp_path / "chunk-0-dataset.json").write_text(json.dumps({"0": lengths}))
    with pytest.raises(InvalidOption, match="not a length and its probability"):
        list(servegen(tmp_path, seed=0))


@needs_traces
def test_the_real_ones_are_read() -> None:
    assert TRACES is not None
    requests = list(mooncake(TRACES / "mooncake" / "conversation_first_30min.jsonl.gz"))
    assert len(requests) == 5719 and sum(a.prompt.num_tokens for a in requests) == 73_604_194
    code = list(azure(TRACES / "azure" / "AzureLLMInferenceTrace_code_2023.csv.gz"))
    assert len(code) == 8819 and statistics.median(a.prompt.num_tokens for a in code) == 1469
    pairs = list(length_pairs(TRACES / "sarathi" / "sharegpt_8k_filtered_stats_llama2_tokenizer.csv.gz"))
    assert len(pairs) == 30731
    tenants = list(timed(TRACES / "vtc" / "VTC__overload.csv.gz"))
    assert {a.principal for a in tenants} == {"0", "1"}
    sessions = islice(agent_sessions(TRACES / "agentic" / "sessions_1-355.jsonl.gz", map(float, range(400))), 20)
    assert sum(1 for first in sessions for _ in run_through(first, 1.0)) > 500


@needs_traces
def test_the_real_servegen_is_read(tmp_path: Path) -> None:
    assert TRACES is not None
    with tarfile.open(TRACES / "servegen" / "servegen_reason_deepseek-r1.tar.gz") as archive:
        for member in archive.getmembers():
            member.name = Path(member.name).name
            if member.name.startswith(("chunk-1-", "chunk-2-")):
                archive.extract(member, tmp_path, filter="data")
    asked = list(servegen(tmp_path, seed=0, duration_s=7200.0))
    assert len(asked) > 500 and "client-1" in {a.principal for a in asked}


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        (
            "t.csv",
            "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 10:00:00,1,1\n2023-11-16 10:00:01+00:00,1,1\n",
            "3: .*time zone",
        ),
        ("t.csv", "arrived_at,prompt_len,output_len\n2,1,1\n1,1,1\n", "3: .*sort the file"),
        ("t.csv", "arrived_at,prompt_len,output_len\n-2,1,1\n", "2: arrives before 0 s"),
        ("t.csv", "arrived_at,prompt_len,output_len\n0,1e300,1\n", "2: prompt_len must be at most 16777216"),
        (
            "t.jsonl",
            '{"arrived_at": 0, "prompt_len": 1%s, "output_len": 1}' % ("0" * 400),
            "1: prompt_len must be a num",
        ),
    ],
)
def test_what_is_no_time_or_no_length_is_said_with_its_line(tmp_path: Path, name: str, text: str, message: str) -> None:
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(InvalidOption, match=f"{name}:{message}"):
        list(azure(path) if "TIMESTAMP" in text else timed(path))


def test_a_request_may_not_come_before_the_one_above_it(tmp_path: Path) -> None:
    path = lines(tmp_path / "t.jsonl", mooncake_line(), mooncake_line(timestamp=26999))
    with pytest.raises(InvalidOption, match=r"t.jsonl:2: arrives before the line above"):
        list(mooncake(path))


def test_dates_in_seconds_count_from_the_first(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("arrived_at,prompt_len,output_len\n1700000000,1,1\n1700000002.5,1,1\n")
    assert [asked.arrival for asked in timed(path)] == [0.0, 2.5]


def test_a_file_is_what_it_begins_with_whatever_its_name_and_marks(tmp_path: Path) -> None:
    text = "\ufeffarrived_at,prompt_len,output_len\r\n0,3,1\r\n"
    for name, content in (("a.txt", text), ("b.json", '{"arrived_at": 0, "prompt_len": 3, "output_len": 1}')):
        (tmp_path / name).write_bytes(content.encode())
        assert [asked.prompt.num_tokens for asked in timed(tmp_path / name)] == [3]


def test_a_session_has_no_more_blocks_than_its_prompt(tmp_path: Path) -> None:
    request = {"t": 0, "in": 130, "out": 5, "blocks": [[0, 10**9]]}
    path = lines(tmp_path / "s.jsonl", {"id": "s", "block_size": 64, "requests": [request]})
    with pytest.raises(InvalidOption, match=r"s.jsonl:1: requests\[0\]: its blocks hold 64000000064 tokens"):
        list(agent_sessions(path, [0.0]))


@pytest.mark.parametrize(
    ("prompt", "message"),
    [([1, -5], "no token"), ([1, 1 << 40], "no token"), (["a", "b"], "a text or a list of tokens")],
)
def test_a_prompt_of_a_batch_file_is_one(tmp_path: Path, prompt: object, message: str) -> None:
    path = lines(tmp_path / "b.jsonl", {"custom_id": "1", "body": {"prompt": prompt, "max_tokens": 5}})
    with pytest.raises(InvalidOption, match=f"b.jsonl:1: body: .*{message}"):
        list(batch_file(path, output=None))


def test_half_a_character_is_a_word_as_well(tmp_path: Path) -> None:
    assert len(words("hello \ud800")) == 2


def test_a_client_of_servegen_has_a_number_and_a_shape_that_can_be_drawn(tmp_path: Path) -> None:
    (tmp_path / "chunk-a-trace.csv").write_text("0,1,1,Gamma,1,1\n")
    with pytest.raises(InvalidOption, match=r"chunk-NUMBER-trace.csv"):
        list(servegen(tmp_path, seed=0))
    (tmp_path / "chunk-a-trace.csv").rename(tmp_path / "chunk-1-trace.csv")
    (tmp_path / "chunk-1-trace.csv").write_text("0,1,1,Weibull,1e-300,1\n")
    with pytest.raises(InvalidOption, match=r"chunk-1-trace.csv:1: the shape"):
        list(servegen(tmp_path, seed=0))

"""What the series say, read back by Prometheus' own parser."""

from __future__ import annotations

from dataclasses import replace

from prometheus_client.parser import text_string_to_metric_families

from chairlift.core.types import Decisions, EngineStats, Finish, FinishReason, WaitReason
from chairlift.metrics.serving import PROMPT_SOURCES, ServingMetrics
from chairlift.metrics.several import render_all

LABELS = {"model_name": "m", "engine": "0"}
VLLM_REASONS = ("capacity", "deferred")
FIRST_TOKEN_LATE, END_LATE = "ttft deadline: no first token within 1 s", "e2e deadline: not finished within 1 s"


def samples(metrics: ServingMetrics) -> dict[str, float]:
    """Series with its further labels -> value; every series must carry the common labels."""
    found: dict[str, float] = {}
    for family in text_string_to_metric_families(render_all([metrics]).decode()):
        for sample in family.samples:
            labels = dict(sample.labels)
            assert {name: labels.pop(name) for name in LABELS} == LABELS, sample
            more = ",".join(f"{k}={v}" for k, v in sorted(labels.items()))
            found[f"{sample.name}{{{more}}}"] = sample.value
    return found


def make() -> ServingMetrics:
    return ServingMetrics("m", max_model_len=1000, num_blocks=200, block_size=16)


def finish(
    reason: FinishReason, *, output: int = 5, scheduled: float | None = 11.0, error: str | None = None
) -> Finish:
    return Finish(
        id=1,
        choice=0,
        reason=reason,
        stop_reason=None,
        error=error,
        num_prompt_tokens=30,
        num_output_tokens=output,
        num_cached_tokens=16,
        num_preemptions=1,
        arrival=10.0,
        first_scheduled=scheduled,
        first_token=None if scheduled is None else scheduled + 0.5,
        finished=20.0,
    )


def test_the_series_that_dashboards_know_are_there_from_the_start() -> None:
    names = {name.partition("{")[0] for name in samples(make())}
    counters = {
        "prefix_cache_queries", "prefix_cache_hits", "num_preemptions", "prompt_tokens", "generation_tokens",
        "request_success",
    }  # fmt: skip
    gauges = {"num_requests_running", "num_requests_waiting", "kv_cache_usage_perc", "cache_config_info"}
    histograms = {
        "time_to_first_token_seconds", "inter_token_latency_seconds", "request_time_per_output_token_seconds",
        "e2e_request_latency_seconds", "request_queue_time_seconds", "request_prefill_time_seconds",
        "request_decode_time_seconds", "request_inference_time_seconds", "iteration_tokens_total",
        "request_prompt_tokens", "request_generation_tokens", "request_params_n", "request_params_max_tokens",
        "request_num_preemptions",
    }  # fmt: skip
    expected = {f"vllm:{name}_total" for name in counters} | {f"vllm:{name}" for name in gauges}
    for name in histograms:
        expected |= {f"vllm:{name}_{part}" for part in ("bucket", "sum", "count")}
    assert expected <= names


def test_gauges_are_the_last_counts() -> None:
    metrics = make()
    metrics.on_stats(EngineStats(3, 2, 50, 0, num_preemptions=7, prefix_queries=100, prefix_hits=40))
    found = samples(metrics)
    assert found["vllm:num_requests_running{}"] == 3
    assert found["vllm:num_requests_waiting{}"] == 2
    assert found["vllm:kv_cache_usage_perc{}"] == 0.25
    assert found["vllm:num_preemptions_total{}"] == 7
    assert found["vllm:prefix_cache_hits_total{}"] == 40
    metrics.on_engine_dead()
    assert samples(metrics)["vllm:kv_cache_usage_perc{}"] == 0


def test_what_engines_count_goes_on_where_the_last_one_ended() -> None:
    metrics = make()
    for number in range(1, 4):
        for part in (1, 2):
            stats = EngineStats(3, 0, 50, 0, 7 * part, 100 * part, 40 * part, waited_s={WaitReason.BLOCKS: 1.5 * part})
            metrics.on_stats(stats)
        metrics.on_engine_dead()
        metrics.on_engine_back(200, 16)
        found = samples(metrics)
        assert found["vllm:num_preemptions_total{}"] == 14 * number
        assert found["vllm:prefix_cache_queries_total{}"] == 200 * number
        assert found["vllm:prefix_cache_hits_total{}"] == 80 * number
        assert found["chairlift:queue_blocked_seconds_total{reason=blocks}"] == 3.0 * number
        assert found["vllm:num_requests_running{}"] == 0


def test_who_waits_and_for_how_long_is_said_for_every_reason() -> None:
    metrics = make()
    reasons = {reason.value for reason in WaitReason}

    def by_reason(name: str) -> dict[str, float]:
        found = samples(metrics)
        return {reason: found[f"{name}{{reason={reason}}}"] for reason in reasons}

    assert set(by_reason("chairlift:num_requests_waiting_by_reason").values()) == {0}
    metrics.on_stats(
        EngineStats(
            3, 5, 50, 0, 0, 0, 0,
            waiting_by_reason={WaitReason.BLOCKS: 4, WaitReason.TOKENS: 1},
            waited_s={WaitReason.BLOCKS: 1.5},
        )
    )  # fmt: skip
    nobody = dict.fromkeys(reasons, 0.0)
    assert by_reason("chairlift:num_requests_waiting_by_reason") == nobody | {"blocks": 4, "tokens": 1}
    assert by_reason("chairlift:queue_blocked_seconds_total") == nobody | {"blocks": 1.5}
    metrics.on_engine_dead()
    assert by_reason("chairlift:num_requests_waiting_by_reason") == nobody
    assert by_reason("chairlift:queue_blocked_seconds_total") == nobody | {"blocks": 1.5}


def test_those_who_wait_for_others_are_deferred_and_everybody_else_lacks_room() -> None:
    metrics = make()
    waiting = {reason: number for number, reason in enumerate(WaitReason, 1)}
    metrics.on_stats(EngineStats(0, sum(waiting.values()), 0, 0, 0, 0, 0, waiting_by_reason=waiting))
    found = samples(metrics)
    by_reason = {reason: found[f"vllm:num_requests_waiting_by_reason{{reason={reason}}}"] for reason in VLLM_REASONS}
    assert by_reason["deferred"] == waiting[WaitReason.BATCH] + waiting[WaitReason.PREFIX]
    assert sum(by_reason.values()) == found["vllm:num_requests_waiting{}"] == sum(waiting.values())


def test_prompt_tokens_have_a_source_once_their_request_ends() -> None:
    metrics = make()
    metrics.on_finish(finish(FinishReason.STOP))
    metrics.on_finish(finish(FinishReason.ABORT))
    metrics.on_finish(replace(finish(FinishReason.STOP), choice=1))  # of the same prompt
    metrics.on_finish(finish(FinishReason.ABORT, scheduled=None))  # nothing was computed
    found = samples(metrics)
    assert found["vllm:prompt_tokens_cached_total{}"] == 32
    by_source = {source: found[f"vllm:prompt_tokens_by_source_total{{source={source}}}"] for source in PROMPT_SOURCES}
    assert by_source == {"local_compute": 28, "local_cache_hit": 32, "external_kv_transfer": 0}
    assert found["vllm:request_prefill_kv_computed_tokens_sum{}"] == 2 * 14


def test_a_single_pass_has_its_tokens_computed_though_no_token_came() -> None:
    metrics = make()
    one = replace(finish(FinishReason.STOP, output=0), first_token=None, num_cached_tokens=0)
    metrics.on_prefilled(one.num_prompt_tokens)
    metrics.on_finish(one)
    found = samples(metrics)
    assert (
        found["vllm:prompt_tokens_by_source_total{source=local_compute}"] == found["vllm:prompt_tokens_total{}"] == 30
    )
    assert found["vllm:request_queue_time_seconds_count{}"] == found["vllm:e2e_request_latency_seconds_count{}"] == 1
    assert found["vllm:request_prefill_time_seconds_count{}"] == 0


def test_what_preemptions_cost_is_counted() -> None:
    metrics = make()
    metrics.on_finish(replace(finish(FinishReason.STOP), num_preemptions=3, decisions=Decisions(recomputed_tokens=70)))
    found = samples(metrics)
    assert found["chairlift:recomputed_tokens_total{}"] == 70
    assert found["vllm:request_num_preemptions_bucket{le=2.0}"] == 0
    assert found["vllm:request_num_preemptions_bucket{le=3.0}"] == 1


def test_limits_are_those_in_force() -> None:
    metrics = make()
    metrics.on_stats(
        EngineStats(0, 0, 0, 0, 0, 0, 0, max_num_seqs=48, max_num_batched_tokens=512, max_prefill_tokens=96)
    )
    found = samples(metrics)
    assert found["chairlift:max_num_seqs{}"] == 48
    assert found["chairlift:max_num_batched_tokens{}"] == 512
    assert found["chairlift:max_prefill_tokens{}"] == 96


def test_reasons_to_end_are_a_closed_set_and_deadlines_are_told_apart() -> None:
    metrics = make()
    ends = [key for key in samples(metrics) if key.startswith("vllm:request_success_total{")]
    assert len(ends) == len(FinishReason)
    metrics.on_finish(finish(FinishReason.DEADLINE, scheduled=None, error=FIRST_TOKEN_LATE))
    metrics.on_finish(finish(FinishReason.DEADLINE, scheduled=None, error=END_LATE))
    metrics.on_finish(finish(FinishReason.DEADLINE, error=END_LATE))
    found = samples(metrics)
    assert found["vllm:request_success_total{finished_reason=deadline}"] == 3
    assert found["chairlift:deadline_exceeded_total{kind=ttft}"] == 1
    assert found["chairlift:deadline_exceeded_total{kind=e2e}"] == 2
    assert found["vllm:e2e_request_latency_seconds_count{}"] == 0


def test_one_step_counts_every_token_once() -> None:
    metrics = make()
    metrics.on_tokens(5.0, {4.9: 3, 4.0: 1}, num_others=2)
    found = samples(metrics)
    assert found["vllm:generation_tokens_total{}"] == 6
    assert found["vllm:inter_token_latency_seconds_count{}"] == 4
    assert found["vllm:inter_token_latency_seconds_bucket{le=0.15}"] == 3


def test_a_finished_choice_gives_each_latency_its_part() -> None:
    metrics = make()
    metrics.on_finish(finish(FinishReason.STOP))
    found = samples(metrics)
    assert found["vllm:e2e_request_latency_seconds_sum{}"] == 10.0
    assert found["vllm:request_queue_time_seconds_sum{}"] == 1.0
    assert found["vllm:request_prefill_time_seconds_sum{}"] == 0.5
    assert found["vllm:request_decode_time_seconds_sum{}"] == 8.5
    assert found["vllm:request_inference_time_seconds_sum{}"] == 9.0
    assert found["vllm:request_time_per_output_token_seconds_sum{}"] == 8.5 / 4
    assert found["vllm:request_success_total{finished_reason=stop}"] == 1


def test_an_aborted_choice_is_counted_but_gives_no_latency() -> None:
    metrics = make()
    metrics.on_finish(finish(FinishReason.ABORT))
    metrics.on_finish(finish(FinishReason.ERROR, scheduled=None))
    found = samples(metrics)
    assert found["vllm:request_success_total{finished_reason=abort}"] == 1
    assert found["vllm:request_success_total{finished_reason=error}"] == 1
    assert found["vllm:e2e_request_latency_seconds_count{}"] == 0


def test_a_single_token_has_no_time_per_further_token() -> None:
    metrics = make()
    metrics.on_finish(finish(FinishReason.LENGTH, output=1))
    assert samples(metrics)["vllm:request_time_per_output_token_seconds_count{}"] == 0


def test_two_engines_in_one_process_do_not_share_anything() -> None:
    one, other = make(), make()
    one.on_prefilled(5)
    assert samples(one)["vllm:prompt_tokens_total{}"] == 5
    assert samples(other)["vllm:prompt_tokens_total{}"] == 0


def test_scraping_twice_gives_the_same() -> None:
    metrics = make()
    metrics.on_response("/v1/models", 200)
    assert render_all([metrics]) == render_all([metrics])
    assert samples(metrics)["chairlift:http_responses_total{route=/v1/models,status=200}"] == 1

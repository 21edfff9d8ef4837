"""What a serving process counts, and how it is told to Prometheus.

Names, labels and buckets are those of the `vllm:` series where such a series means the same thing; what only
Chairlift has is called `chairlift:`. Numbers are plain attributes and lists, fed once per step; the Prometheus
objects exist only while somebody scrapes.

Definitions (all times on the machine's monotonic clock; the request's arrival is its receipt by the HTTP server):

    arrival ---- first scheduled ---- first token ---- ... ---- finished
       |--- queue ---|---- prefill ----|------- decode -----------|
       |------------- TTFT ------------|--ITL--|--ITL--| ...
       |------------------------- E2E ----------------------------|
    TPOT = decode / (output tokens - 1)
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.metrics_core import HistogramMetricFamily, Metric

from chairlift.core.admission import RefusalReason
from chairlift.core.explain import missed
from chairlift.core.types import EngineStats, Finish, FinishReason, WaitReason
from chairlift.metrics import buckets
from chairlift.metrics.families import by_label, counter, gauge
from chairlift.metrics.histogram import Histogram

CONTENT_TYPE = CONTENT_TYPE_LATEST

PROMPT_SOURCES = ("local_compute", "local_cache_hit", "external_kv_transfer")
"""Where the keys and values of prompts come from; nothing is transferred here, and who sums up expects all three."""

_NOTHING = EngineStats(0, 0, 0, 0, 0, 0, 0)

DEFERRED = frozenset((WaitReason.BATCH, WaitReason.PREFIX))
"""Those who wait for others though there may be room."""


class ServingMetrics:
    """Counters, gauges and histograms of one engine behind one HTTP server; no process globals."""

    def __init__(
        self, model_name: str, max_model_len: int, num_blocks: int, block_size: int, engine: str = "0"
    ) -> None:
        self.labels = {"model_name": model_name, "engine": engine}
        """Of every series."""
        self._cache = _cache_shape(num_blocks, block_size)
        self._num_blocks = num_blocks

        self.stats = _NOTHING
        """What the engine said last."""
        self._of_lost = _NOTHING
        """What engines had counted since their start that are lost."""
        self.num_prompt_tokens = 0
        self.num_prompt_tokens_by_source = dict.fromkeys(PROMPT_SOURCES, 0)
        """Of requests whose prompt was computed, known when their first choice ends."""
        self.num_recomputed_tokens = 0
        self.num_generation_tokens = 0
        self.num_finished = dict.fromkeys(FinishReason, 0)
        self.num_deadlines_exceeded = {"ttft": 0, "e2e": 0}
        self.num_disconnects = 0
        self.num_slow_readers = 0
        self.num_engine_restarts = 0
        self.num_usage_records_lost = 0
        self.num_traces_lost = 0
        self.is_engine_up = True
        self.num_rejections = dict.fromkeys(RefusalReason, 0)
        self._responses: dict[tuple[str, int], int] = {}

        tokens = buckets.token_edges(max_model_len)
        self.time_to_first_token = Histogram(buckets.TTFT_S)
        self.inter_token_latency = Histogram(buckets.ITL_S)
        self.time_per_output_token = Histogram(buckets.ITL_S)
        self.e2e_latency = Histogram(buckets.LATENCY_S)
        self.queue_time = Histogram(buckets.LATENCY_S)
        self.prefill_time = Histogram(buckets.LATENCY_S)
        self.decode_time = Histogram(buckets.LATENCY_S)
        self.inference_time = Histogram(buckets.LATENCY_S)
        self.step_tokens = Histogram(buckets.STEP_TOKENS)
        self.step_time = Histogram(buckets.STEP_S)
        self.prompt_tokens = Histogram(tokens)
        self.generation_tokens = Histogram(tokens)
        self.params_n = Histogram(buckets.NUM_CHOICES)
        self.params_max_tokens = Histogram(tokens)
        self.computed_prompt_tokens = Histogram(tokens)
        self.max_generation_tokens = Histogram(tokens)
        self.preemptions = Histogram(buckets.NUM_PREEMPTIONS)

    # ------------------------------------------------------------ feeding

    def on_stats(self, stats: EngineStats) -> None:
        """The engine's counts after a step: kept as they are, and read when somebody asks."""
        self.stats = stats

    def on_step(self, num_tokens: int, duration_s: float) -> None:
        """A step that computed `num_tokens` tokens."""
        self.step_tokens.observe(num_tokens)
        self.step_time.observe(duration_s)

    def on_tokens(self, now: float, last_times: dict[float, int], num_others: int) -> None:
        """The tokens of one step: `last_times[t]` of them follow one that came at `t`, `num_others` none known."""
        for last_time, count in last_times.items():
            self.inter_token_latency.observe(now - last_time, count)
            self.num_generation_tokens += count
        self.num_generation_tokens += num_others

    def on_first_token(self, ttft_s: float) -> None:
        """The first token of a choice."""
        self.time_to_first_token.observe(ttft_s)

    def on_prefilled(self, num_prompt_tokens: int) -> None:
        """A request's prompt was computed: its first token came."""
        self.num_prompt_tokens += num_prompt_tokens

    def on_request(self, n: int, max_tokens: int) -> None:
        """A request was handed to the engine."""
        self.params_n.observe(n)
        self.params_max_tokens.observe(max_tokens)

    def on_finish(self, finish: Finish) -> None:
        """The end of one choice, whoever still listens to it."""
        self.num_finished[finish.reason] += 1
        self.preemptions.observe(finish.num_preemptions)
        self.num_recomputed_tokens += finish.decisions.recomputed_tokens
        num_computed = finish.num_prompt_tokens - finish.num_cached_tokens
        if finish.choice == 0 and (finish.first_token is not None or finish.reason is FinishReason.STOP):
            self.num_prompt_tokens_by_source["local_compute"] += num_computed
            self.num_prompt_tokens_by_source["local_cache_hit"] += finish.num_cached_tokens
        if finish.reason is FinishReason.DEADLINE:
            self.num_deadlines_exceeded[missed(finish)] += 1
        if finish.reason not in (FinishReason.STOP, FinishReason.LENGTH):
            return  # a latency that somebody cut short says nothing about the engine
        self.prompt_tokens.observe(finish.num_prompt_tokens)
        self.computed_prompt_tokens.observe(num_computed)
        self.generation_tokens.observe(finish.num_output_tokens)
        self.e2e_latency.observe(finish.finished - finish.arrival)
        if finish.first_scheduled is None:
            return
        self.queue_time.observe(finish.first_scheduled - finish.arrival)
        self.inference_time.observe(finish.finished - finish.first_scheduled)
        if finish.first_token is None:
            return
        self.prefill_time.observe(finish.first_token - finish.first_scheduled)
        self.decode_time.observe(finish.finished - finish.first_token)
        if finish.num_output_tokens > 1:
            decode_s = finish.finished - finish.first_token
            self.time_per_output_token.observe(decode_s / (finish.num_output_tokens - 1))

    def on_complete(self, max_output_tokens: int) -> None:
        """Every choice of a request that somebody waited for ended, the longest with so many tokens."""
        self.max_generation_tokens.observe(max_output_tokens)

    def on_rejection(self, reason: RefusalReason) -> None:
        """Admission refused a request for now."""
        self.num_rejections[reason] += 1

    def on_response(self, route: str, status: int) -> None:
        """An HTTP response began. `route` is the name of a known route, never what a client typed."""
        key = (route, status)
        self._responses[key] = self._responses.get(key, 0) + 1

    def on_engine_dead(self) -> None:
        """Nothing runs, waits or holds blocks any longer."""
        self.is_engine_up = False
        self.stats = replace(self.stats, num_running=0, num_waiting=0, num_used_blocks=0, waiting_by_reason={})

    def on_engine_back(self, num_blocks: int, block_size: int) -> None:
        """Another engine takes the place of the one that died and counts anew; its cache may have another size."""
        self._of_lost, self.stats = self._counted(), _NOTHING
        self.is_engine_up = True
        self.num_engine_restarts += 1
        self._cache = _cache_shape(num_blocks, block_size)
        self._num_blocks = num_blocks

    def _counted(self) -> EngineStats:
        """The engine's counts since the start, of all engines that there were."""
        now, lost = self.stats, self._of_lost
        return replace(
            lost,
            num_preemptions=lost.num_preemptions + now.num_preemptions,
            prefix_queries=lost.prefix_queries + now.prefix_queries,
            prefix_hits=lost.prefix_hits + now.prefix_hits,
            waited_s={reason: lost.waited_s.get(reason, 0.0) + now.waited_s.get(reason, 0.0) for reason in WaitReason},
        )

    # ------------------------------------------------------------ telling

    def collect(self) -> Iterator[Metric]:
        """All series, for one scrape."""
        yield from self._gauges()
        yield from self._counters()
        yield from self._histograms()

    def _gauges(self) -> Iterator[Metric]:
        stats = self.stats
        usage = stats.num_used_blocks / self._num_blocks if self._num_blocks else 0.0
        for name, text, value in (
            ("vllm:num_requests_running", "Sequences that hold a slot.", stats.num_running),
            ("vllm:num_requests_waiting", "Sequences that wait for a slot or for blocks.", stats.num_waiting),
            ("vllm:kv_cache_usage_perc", "Share of the cache's blocks in use, 0 to 1.", usage),
            (
                "chairlift:engine_up",
                "Whether the engine runs: 1, or 0 while another one is started.",
                self.is_engine_up,
            ),
            ("chairlift:max_num_seqs", "Most sequences computed at once, as in force.", stats.max_num_seqs),
            ("chairlift:max_num_batched_tokens", "Most tokens of a step, as in force.", stats.max_num_batched_tokens),
            (
                "chairlift:max_prefill_tokens",
                "Most prompt tokens that the last step could hold.",
                stats.max_prefill_tokens,
            ),
        ):
            yield gauge(name, text, self.labels, [((), value)])
        waiting = {reason: stats.waiting_by_reason.get(reason, 0) for reason in WaitReason}
        num_deferred = sum(waiting[reason] for reason in DEFERRED)
        yield gauge(
            "vllm:num_requests_waiting_by_reason",
            "Waiting sequences: for room (capacity), or for others though there is room (deferred).",
            self.labels,
            by_label((("capacity", sum(waiting.values()) - num_deferred), ("deferred", num_deferred))),
            ("reason",),
        )
        yield gauge(
            "chairlift:num_requests_waiting_by_reason",
            "Waiting sequences by what keeps them.",
            self.labels,
            by_label(waiting.items()),
            ("reason",),
        )
        yield gauge("vllm:cache_config_info", "Shape of the key/value cache.", self.labels | self._cache, [((), 1)])

    def _counters(self) -> Iterator[Metric]:
        stats = self._counted()
        for name, text, value in (
            ("vllm:prefix_cache_queries", "Prompt tokens looked up in the prefix cache.", stats.prefix_queries),
            ("vllm:prefix_cache_hits", "Prompt tokens found in the prefix cache.", stats.prefix_hits),
            ("vllm:num_preemptions", "Times a running sequence was put back.", stats.num_preemptions),
            ("vllm:prompt_tokens", "Prompt tokens of requests whose first token came.", self.num_prompt_tokens),
            (
                "vllm:prompt_tokens_cached",
                "Prompt tokens taken from the prefix cache.",
                self.num_prompt_tokens_by_source["local_cache_hit"],
            ),
            ("vllm:generation_tokens", "Tokens generated.", self.num_generation_tokens),
            (
                "chairlift:recomputed_tokens",
                "Tokens computed again after preemptions.",
                self.num_recomputed_tokens,
            ),
            ("chairlift:steps", "Steps that computed something.", self.step_tokens.count),
            ("chairlift:engine_restarts", "Times a lost engine was replaced.", self.num_engine_restarts),
            (
                "chairlift:usage_records_lost",
                "Requests that are missing in the usage log.",
                self.num_usage_records_lost,
            ),
            ("chairlift:traces_lost", "Requests whose traces no collector took.", self.num_traces_lost),
            ("chairlift:disconnects", "Requests whose client left before the end.", self.num_disconnects),
            ("chairlift:slow_readers", "Requests ended because their client did not read.", self.num_slow_readers),
        ):
            yield counter(name, text, self.labels, [((), value)])
        blocked = {reason: stats.waited_s.get(reason, 0.0) for reason in WaitReason}
        for name, text, label, values in (
            (
                "vllm:prompt_tokens_by_source",
                "Prompt tokens by where from.",
                "source",
                self.num_prompt_tokens_by_source,
            ),
            ("vllm:request_success", "Choices ended, by reason.", "finished_reason", self.num_finished),
            (
                "chairlift:queue_blocked_seconds",
                "Seconds in which somebody waited, by what kept the head of the queue.",
                "reason",
                blocked,
            ),
            (
                "chairlift:deadline_exceeded",
                "Choices whose first token or end came too late.",
                "kind",
                self.num_deadlines_exceeded,
            ),
            ("vllm:admission_rejections", "Requests refused for now, by reason.", "reason", self.num_rejections),
        ):
            yield counter(name, text, self.labels, by_label(values.items()), (label,))
        responses = [((route, str(status)), count) for (route, status), count in sorted(self._responses.items())]
        yield counter("chairlift:http_responses", "HTTP responses.", self.labels, responses, ("route", "status"))

    def _histograms(self) -> Iterator[Metric]:
        for name, text, histogram in (
            ("vllm:time_to_first_token_seconds", "From arrival to the first token.", self.time_to_first_token),
            ("vllm:inter_token_latency_seconds", "Between two tokens of a choice.", self.inter_token_latency),
            (
                "vllm:request_time_per_output_token_seconds",
                "Mean time per token after the first.",
                self.time_per_output_token,
            ),
            ("vllm:e2e_request_latency_seconds", "From arrival to the end.", self.e2e_latency),
            ("vllm:request_queue_time_seconds", "From arrival to the first step.", self.queue_time),
            ("vllm:request_prefill_time_seconds", "From the first step to the first token.", self.prefill_time),
            ("vllm:request_decode_time_seconds", "From the first token to the end.", self.decode_time),
            ("vllm:request_inference_time_seconds", "From the first step to the end.", self.inference_time),
            ("vllm:iteration_tokens_total", "Tokens computed per step.", self.step_tokens),
            ("vllm:request_prompt_tokens", "Prompt tokens per choice.", self.prompt_tokens),
            (
                "vllm:request_prefill_kv_computed_tokens",
                "Prompt tokens per choice that were not in the prefix cache.",
                self.computed_prompt_tokens,
            ),
            ("vllm:request_generation_tokens", "Output tokens per choice.", self.generation_tokens),
            (
                "vllm:request_max_num_generation_tokens",
                "Output tokens of the longest choice per request.",
                self.max_generation_tokens,
            ),
            ("vllm:request_params_n", "Choices asked for per request.", self.params_n),
            ("vllm:request_params_max_tokens", "Output limit per request.", self.params_max_tokens),
            ("vllm:request_num_preemptions", "Preemptions per choice.", self.preemptions),
            ("chairlift:step_seconds", "Duration of a step.", self.step_time),
        ):
            family = HistogramMetricFamily(name, text, labels=tuple(self.labels))
            family.add_metric(tuple(self.labels.values()), histogram.cumulative(), histogram.sum)
            yield family


def _cache_shape(num_blocks: int, block_size: int) -> dict[str, str]:
    return {
        "num_gpu_blocks": str(num_blocks),
        "block_size": str(block_size),
        "kv_cache_size_tokens": str(num_blocks * block_size),
    }

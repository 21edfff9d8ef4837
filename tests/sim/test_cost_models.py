"""Cost models by themselves: their arithmetic, and that all ways of asking give the same."""

from __future__ import annotations

import json
import math
import statistics
from pathlib import Path

import pytest

from chairlift.core.errors import InvalidModel, InvalidOption
from chairlift.core.types import Chunk, StepPlan
from chairlift.sim.cost import (
    LESSON,
    ChunkCosts,
    Coefficients,
    HostCosts,
    LineModel,
    NoisyCost,
    Precision,
    RowCosts,
    SmoothCost,
    Span,
    StepShape,
    WatchedCost,
    device_named,
    num_kv_tokens,
    shape_of,
    smooth_roofline,
    transformer_named,
)
from chairlift.sim.cost.ranges import spans_of

EXAMPLE = Coefficients(
    weights_s=3.0,
    token_s=1.0,
    output_s=0.01,
    decode=RowCosts(0.1, 0.02, 0.003),
    mixed=RowCosts(0.2, 0.03, 0.004),
    chunks=ChunkCosts(5.0, 0.5, 0.25, 0.125, 0.0625, tile=4),
)


def plan(num_decodes: int = 0, context: int = 0, chunks: tuple[tuple[int, int, bool], ...] = ()) -> StepPlan:
    made = StepPlan(0, decodes=list(range(num_decodes)), num_context_tokens=context)
    for start, size, samples in chunks:
        made.chunks.append(Chunk(99, start, size, samples))
        made.num_chunk_tokens += size
        made.num_chunk_pairs += size * start + size * (size + 1) // 2
    return made


# ---------------------------------------------------------------- the seed's


def test_the_lesson_reads_every_token_of_every_sequence() -> None:
    """As in the lesson: 4.48 ms, and 131,072 bytes over 3.35 TB/s for each of 3 * 1,000 + 2 + 7 tokens."""
    step = plan(2, 2000 + 7, ((0, 1000, True),))
    assert LESSON(step) * 1e3 == pytest.approx(4.48 + (2 + 2007 + 1000) * 131072 / 3.35e9, rel=1e-12)


def test_a_filler_costs_what_a_decode_does() -> None:
    filled = plan(3, 300)
    filled.fillers = [5, 6]
    for cost in (LESSON, SmoothCost(EXAMPLE)):
        assert cost(filled) == cost(plan(5, 300))


# ---------------------------------------------------------------- the smooth form


def test_a_decode_step_by_hand() -> None:
    """Body sqrt(3**2 + 4**2) = 5, outputs 4 * 0.01, step 0.1, rows 4 * 0.02, context 100 * 0.003."""
    assert SmoothCost(EXAMPLE)(plan(4, 100)) == pytest.approx(5 + 0.04 + 0.1 + 0.08 + 0.3)


def test_a_mixed_step_by_hand() -> None:
    """Chunks of 3 tokens after 10 and of 5 after 0: tokens 8, half squares 17, prefix 10, tiles 4 * 10."""
    body = math.hypot(3, 4 + 8)
    rows = 0.2 + 4 * 0.03 + 100 * 0.004
    chunks = 5.0 + 8 * 0.5 + 17 * 0.25 + 10 * 0.125 + 40 * 0.0625
    step = plan(4, 100, ((10, 3, False), (0, 5, True)))
    assert SmoothCost(EXAMPLE)(step) == pytest.approx(body + (4 + 1) * 0.01 + rows + chunks)


def test_a_step_is_padded_to_a_size_that_was_built() -> None:
    cost = SmoothCost(Coefficients(weights_s=0.0, token_s=1.0, token_sizes=(1, 4, 16)))
    assert [cost(plan(rows)) for rows in (1, 2, 4, 5, 16, 17)] == [1, 4, 4, 16, 16, 17]


def test_the_host_adds_to_the_device_or_hides_behind_it() -> None:
    device = SmoothCost(Coefficients(weights_s=1.0, token_s=0.0))
    assert device.with_host(HostCosts(0.5, 0.25))(plan(2)) == pytest.approx(2.0)
    hidden = device.with_host(HostCosts(0.5, 0.25, overlaps=True))
    assert [hidden(plan(rows)) for rows in (2, 6)] == pytest.approx([1.0, 2.0])
    assert hidden(plan(2, 0, ((0, 1, True),) * 4)) == pytest.approx(2.0)


@pytest.mark.parametrize("overlaps", [False, True])
def test_steps_on_a_line_cost_to_the_last_bit_what_the_model_says(overlaps: bool) -> None:
    smooth = smooth_roofline(transformer_named("llama-3.1-8b"), device_named("h100"))
    smooth = smooth.with_host(HostCosts(0.004, 1e-5, overlaps))
    for cost in (smooth, LESSON, WatchedCost(smooth, {}, lambda text: None)):
        assert isinstance(cost, LineModel)
        for rows in (1, 7, 256):
            line = cost.decode_line(rows)
            for context in (0, 3, 12_345, 10**6):
                assert line.seconds(context) == cost(plan(rows, context))


def test_a_shape_costs_what_its_plan_does() -> None:
    cost = SmoothCost(EXAMPLE)
    for step in (plan(3, 50), plan(0, 0, ((7, 9, True),)), plan(2, 20, ((0, 1, False), (3, 4, True)))):
        shape = shape_of(step)
        assert cost.of_shape(shape) == cost(step)
        assert (shape.num_tokens, shape.num_chunk_pairs) == (step.num_tokens, step.num_chunk_pairs)


def test_the_body_stands_large_powers() -> None:
    cost = SmoothCost(Coefficients(weights_s=1e-9, token_s=1e-12, power=64.0))
    assert cost(plan(1)) == pytest.approx(1e-9)
    assert cost(plan(10**6)) == pytest.approx(1e-6)


# ---------------------------------------------------------------- the roofline


@pytest.mark.parametrize(
    ("device", "milliseconds"),
    [("h200", (4.0, 5.6, 9.1, 34.3)), ("h100", (5.1, 7.0, 9.0, 35.3)), ("a100-80gb", (10.2, 17.9, 30.7, 110.0))],
)
def test_priors_come_near_what_was_measured(device: str, milliseconds: tuple[float, ...]) -> None:
    """Llama-3-8B's multiplications for 1, 256, 512 and 2,048 tokens, from kernel times of three GPUs."""
    cost = smooth_roofline(transformer_named("llama-3-8b"), device_named(device))
    predicted = [cost.body_s(tokens) * 1e3 for tokens in (1, 256, 512, 2048)]
    assert predicted == pytest.approx(milliseconds, rel=0.20)


def test_sizes_of_known_models() -> None:
    """Published: bytes that the cache keeps for a token in bfloat16, and parameters of the layers of Llama-3-8B."""
    bfloat16 = Precision()
    published = {
        "llama-3-8b": 131_072,
        "llama-3-70b": 327_680,
        "llama-2-7b": 524_288,
        "yi-34b": 245_760,
        "falcon-180b": 163_840,
        "opt-13b": 819_200,
        "opt-175b": 4_718_592,
    }
    assert {name: bfloat16.kv_token_bytes(transformer_named(name)) for name in published} == published
    assert transformer_named("Llama-3-8B").num_body_parameters == pytest.approx(6.98e9, rel=1e-3)
    assert transformer_named("opt-175b").num_parameters == pytest.approx(175e9, rel=0.02)


def test_more_devices_are_faster_but_not_by_as_much() -> None:
    model, device = transformer_named("llama-3-70b"), device_named("h100")
    one, four, eight = (smooth_roofline(model, device, num_devices=n) for n in (1, 4, 8))
    for step in (plan(8, 8000), plan(0, 0, ((0, 2048, True),)), plan(64, 64_000, ((512, 512, False),))):
        assert one(step) / 4 < four(step) < one(step)
        assert four(step) / 2 < eight(step) < four(step)


def test_smaller_numbers_are_read_faster() -> None:
    model, device = transformer_named("llama-3-8b"), device_named("l4")
    plain, small = (
        smooth_roofline(model, device, precision=Precision(*p)) for p in (("bfloat16",) * 2, ("int8", "u8"))
    )
    assert small(plan(1, 0)) < 0.6 * plain(plan(1, 0))
    assert small.decode_line(1).context_token_s == plain.decode_line(1).context_token_s / 2
    with pytest.raises(InvalidOption, match="unknown precision"):
        Precision("int7")


def test_the_cache_is_what_the_weights_leave() -> None:
    model, device = transformer_named("llama-3-8b"), device_named("a100-80gb")
    alone = num_kv_tokens(model, device)
    assert alone == pytest.approx((0.9 * 80 * 2**30 - 2 * 2**30 - 16.06e9) / 131_072, rel=1e-3)
    assert num_kv_tokens(model, device, num_devices=2) > 2 * alone
    with pytest.raises(InvalidOption, match="does not fit"):
        num_kv_tokens(transformer_named("opt-175b"), device)
    with pytest.raises(InvalidOption, match="shared by 3 devices"):
        smooth_roofline(model, device, num_devices=3)


def test_names_that_nobody_knows() -> None:
    with pytest.raises(InvalidOption, match=r"no such device.*h100"):
        device_named("abacus")
    with pytest.raises(InvalidOption, match="no such model"):
        transformer_named("nobody")


def test_a_model_by_its_config(tmp_path: Path) -> None:
    values = {
        "model_type": "llama",
        "hidden_size": 4096,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "intermediate_size": 14336,
        "vocab_size": 128_256,
    }
    file = tmp_path / "config.json"
    file.write_text(json.dumps(values))
    for name in (str(file), str(tmp_path)):
        model = transformer_named(name)
        assert model.num_parameters == transformer_named("llama-3-8b").num_parameters
    file.write_text(json.dumps({**values, "num_local_experts": 8}))
    with pytest.raises(InvalidModel, match="num_local_experts"):
        transformer_named(str(file))
    file.write_text(json.dumps({**values, "num_key_value_heads": 7}))
    with pytest.raises(InvalidModel, match="cannot share"):
        transformer_named(str(file))


def test_a_model_without_a_gate_by_its_config(tmp_path: Path) -> None:
    values = {
        "model_type": "opt",
        "hidden_size": 5120,
        "num_hidden_layers": 40,
        "num_attention_heads": 40,
        "ffn_dim": 20480,
        "vocab_size": 50_272,
    }
    (tmp_path / "config.json").write_text(json.dumps(values))
    assert transformer_named(str(tmp_path)).num_parameters == transformer_named("opt-13b").num_parameters


# ---------------------------------------------------------------- noise and ranges


def test_noise_is_seeded_and_has_mean_one() -> None:
    cost = SmoothCost(EXAMPLE)
    step = plan(4, 100)
    one, same, other = (NoisyCost(cost, 0.2, seed) for seed in (1, 1, 2))
    drawn = [one(step) for _ in range(4000)]
    assert drawn == [same(step) for _ in range(4000)]
    assert drawn[:3] != [other(step) for _ in range(3)]
    assert statistics.fmean(drawn) == pytest.approx(cost(step), rel=0.01)
    assert statistics.pstdev(map(math.log, drawn)) == pytest.approx(0.2, rel=0.05)
    assert not isinstance(one, LineModel)


def test_noise_as_measured_is_drawn_evenly_from_its_shares() -> None:
    cost = SmoothCost(EXAMPLE)
    step = plan(4, 100)
    deviations = (0.5, 0.9, 1.0, 1.1, 1.5)
    one, same = (NoisyCost(cost, 0.0, 3, deviations) for _ in range(2))
    drawn = [one(step) / cost(step) for _ in range(4000)]
    assert drawn == [same(step) / cost(step) for _ in range(4000)]
    assert 0.5 <= min(drawn) < 0.51 and 1.49 < max(drawn) <= 1.5
    assert statistics.fmean(drawn) == pytest.approx(1.0, abs=0.01)
    assert sum(factor > 1.1 for factor in drawn) / 4000 == pytest.approx(0.25, abs=0.02)


def test_a_warning_comes_once_for_each_regime() -> None:
    told: list[str] = []
    spans = spans_of([StepShape(1, 10), StepShape(8, 4000), StepShape(chunks=((0, 64, True),))])
    cost = WatchedCost(SmoothCost(EXAMPLE), spans, told.append)
    cost(plan(4, 400))
    cost(plan(8, 4100))
    assert told == []
    cost(plan(8, 9000))
    cost(plan(80, 9000))
    assert told == ["decode steps outside of what the calibration measured: 9000 context tokens (measured: 10 to 4000)"]
    cost(plan(0, 0, ((0, 640, True),)))
    cost(plan(2, 200, ((0, 64, True),)))
    cost(plan(2, 200, ((0, 64, True),)))
    assert [text.partition(" ")[0] for text in told] == ["decode", "prefill", "mixed"]


def test_rows_of_steps_taken_at_once_are_looked_at_too() -> None:
    told: list[str] = []
    cost = WatchedCost(SmoothCost(EXAMPLE), spans_of([StepShape(2, 10), StepShape(8, 4000)]), told.append)
    cost.decode_line(4)
    assert told == []
    assert cost.decode_line(80) == SmoothCost(EXAMPLE).decode_line(80)
    cost.decode_line(90)
    assert told == ["decode steps outside of what the calibration measured: 80 rows (measured: 2 to 8)"]


def test_spans_are_of_each_regime() -> None:
    spans = spans_of([StepShape(3, 30), StepShape(1, 90), StepShape(2, 20, ((4, 5, True),))])
    assert spans == {
        "decode": Span((1, 3), (30, 90), (0, 0), (0, 0)),
        "mixed": Span((2, 2), (20, 20), (5, 5), (35, 35)),
    }

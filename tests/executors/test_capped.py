"""Attention with a soft cap: steps in tiles and pieces, and an executor that computes so."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from chairlift.core.errors import InvalidOption
from chairlift.core.types import CacheShape
from chairlift.executors.forward import forward
from chairlift.executors.openvino import ExecutorOptions, program
from chairlift.executors.openvino.attention import BLOCK_SIZE, AttentionShape
from chairlift.executors.openvino.buckets import buckets_up_to
from chairlift.executors.openvino.inputs import SCRATCH_BLOCK, StepInputs, uniform_inputs
from chairlift.executors.openvino.memory import memory_need
from chairlift.executors.openvino.pace import expected_tokens_per_s
from chairlift.executors.openvino.pieces import pieces_of, uncut_inputs
from chairlift.executors.openvino.program import Program
from chairlift.executors.openvino.tiles import TILE_TOKENS, tiled_feed
from chairlift.models import Model, open_model, resolve
from executors.driving import Driver
from executors.families import CONFIGS, NUM_TOKENS, tokens_of, weights_of, write_checkpoint
from executors.test_families import TOLERANCE, loaded
from models.writers import encode, write_safetensors

KV_HEADS = 2
BAD_TOKEN = 99
SHAPE = AttentionShape(4, KV_HEADS, 64, softcap=4.0)


def step(past_lens: Sequence[int], counts: Sequence[int], rng: np.random.Generator) -> StepInputs:
    """Sequences of so many tokens after so many others, in blocks of their own, and 40 outputs."""
    sizes = [max(-(-(past + count) // BLOCK_SIZE), 1) for past, count in zip(past_lens, counts, strict=True)]
    num_tokens = sum(counts)
    positions = [past + np.arange(count) for past, count in zip(past_lens, counts, strict=True)]
    return StepInputs(
        token_ids=rng.integers(3, 100, num_tokens, np.int32),
        positions=np.concatenate(positions).astype(np.int32),
        past_lens=np.array(past_lens, np.int32),
        starts=np.cumsum([0, *counts], dtype=np.int32),
        block_ids=rng.permutation(sum(sizes)).astype(np.int32) + np.int32(1),
        block_starts=np.cumsum([0, *sizes], dtype=np.int32),
        max_context_len=max(past + count for past, count in zip(past_lens, counts, strict=True)),
        output_rows=rng.integers(0, num_tokens, 40, np.int32),
        slots=np.zeros(0, np.int64),
        num_fillers=0,
        num_scored=0,
    )


def cells_of(inputs: StepInputs, sequence: int) -> list[int]:
    """Where in the cache each token of a sequence is, the new ones too."""
    blocks = inputs.block_ids[inputs.block_starts[sequence] : inputs.block_starts[sequence + 1]].tolist()
    end = int(inputs.past_lens[sequence] + inputs.starts[sequence + 1] - inputs.starts[sequence])
    return [blocks[position // BLOCK_SIZE] * BLOCK_SIZE + position % BLOCK_SIZE for position in range(end)]


def written_cells(feed: dict[str, np.ndarray]) -> list[int]:
    """Where the operation that writes the cache puts each token of a step."""
    cells = []
    for n, past in enumerate(feed["past_lens"].tolist()):
        blocks = feed["block_ids"][feed["block_starts"][n] : feed["block_starts"][n + 1]].tolist()
        for position in range(past, past + int(feed["starts"][n + 1] - feed["starts"][n])):
            cells.append(blocks[position // BLOCK_SIZE] * BLOCK_SIZE + position % BLOCK_SIZE)
    return cells


def seen_cells(feed: dict[str, np.ndarray], window: int, num_tokens: int) -> list[list[int]]:
    """What each token of a step sees, by the pairs of its tile, in the order of positions."""
    places, before = {}, 0
    for part in ("single", "chunk"):
        num_tiles, width = feed[f"{part}_tokens"].shape
        for tile in range(num_tiles):
            for at in range(width):
                for head in range(KV_HEADS):
                    places[before + (tile * KV_HEADS + head) * width + at] = part, tile, at, head
        before += num_tiles * KV_HEADS * width
        assert (np.diff(feed[f"{part}_owners.{window}"]) >= 0).all()
        assert feed[f"{part}_count"] == num_tiles
    seen = []
    for token in range(num_tokens):
        (part, tile, at, _), *others = (places[place] for place in feed["result_rows"][token].tolist())
        assert others == [(part, tile, at, head) for head in range(1, KV_HEADS)]
        assert feed[f"{part}_tokens"][tile, at] == token
        position = int(feed[f"{part}_positions"][tile, at])
        cells = {}
        for pair in np.flatnonzero(feed[f"{part}_owners.{window}"] == tile):
            blocks, firsts = (feed[f"{part}_{name}.{window}"][pair].tolist() for name in ("blocks", "firsts"))
            for block, first in zip(blocks, firsts, strict=True):
                for key in range(first, first + BLOCK_SIZE):
                    if key <= position and (not window or key > position - window):
                        assert key not in cells
                        cells[key] = block * BLOCK_SIZE + key - first
        seen.append([cells[key] for key in sorted(cells)])
    return seen


@pytest.mark.parametrize("window", [0, 24, 100])
@pytest.mark.parametrize("seed", range(4))
def test_tiles_see_what_sequences_do(window: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    kinds = rng.integers(0, 4, 6)
    counts = [(0, 1, int(rng.integers(2, 40)), int(rng.integers(60, 150)))[kind] for kind in kinds] + [1]
    past_lens = [int(rng.choice([0, 1, 31, 32, 33, 255, 256, 300])) for _ in counts]
    inputs = step(past_lens, counts, rng)
    feed = tiled_feed(inputs, [window], KV_HEADS)
    expected, written = [], []
    for n, (past, count) in enumerate(zip(past_lens, counts, strict=True)):
        cells = cells_of(inputs, n)
        written += cells[past:]
        first = [max(position - window + 1, 0) if window else 0 for position in range(past, past + count)]
        expected += [cells[begin : past + i + 1] for i, begin in enumerate(first)]
    assert written_cells(feed) == written
    assert seen_cells(feed, window, len(inputs.token_ids)) == expected
    for value in feed.values():
        assert value.dtype == np.int32


def test_shapes_repeat_while_rows_decode() -> None:
    """The device builds something for each new shape: a context grows by many tokens before there is one."""
    shapes = set()
    for past_len in range(512, 576):
        feed = tiled_feed(uniform_inputs(5, past_len, CacheShape(100, BLOCK_SIZE)), [0, 100], KV_HEADS)
        shapes.add(tuple(value.shape for value in feed.values()))
    assert len(shapes) == 2


@pytest.mark.parametrize("most", [0, 300_000, 2_000_000])
def test_pieces_are_the_step(most: int) -> None:
    rng = np.random.default_rng(0)
    past_lens, counts = [300, 0, 31, 64, 7, 0], [1, 200, 1, 65, 0, 128]
    inputs = step(past_lens, counts, rng)
    pieces = pieces_of(inputs, [SHAPE], 512, most)
    assert len(pieces) > 2
    written: list[int] = []
    tokens: list[int] = []
    found: list[int] = []
    for piece in pieces:
        part, before = piece.inputs, len(tokens)
        written += [
            cell for cell in written_cells(tiled_feed(part, [0], KV_HEADS)) if cell // BLOCK_SIZE != SCRATCH_BLOCK
        ]
        num_own = int((np.repeat(part.block_ids[part.block_starts[:-1]], np.diff(part.starts)) != SCRATCH_BLOCK).sum())
        tokens += part.token_ids[:num_own].tolist()
        np.testing.assert_array_equal(part.positions[:num_own], inputs.positions[before : before + num_own])
        np.testing.assert_array_equal(part.output_rows[:-1] + before, inputs.output_rows[piece.outputs])
        found += piece.outputs.tolist()
        assert num_own <= TILE_TOKENS or most
    assert tokens == inputs.token_ids.tolist()
    assert written == [c for n, past in enumerate(past_lens) for c in cells_of(inputs, n)[past:]]
    assert sorted(found) == list(range(40))


def test_a_short_step_is_one_piece() -> None:
    inputs = step([300, 0], [1, 20], np.random.default_rng(0))
    for shape in (SHAPE, AttentionShape(4, 2, 64)):
        (piece,) = pieces_of(inputs, [shape], 512, 1 << 24)
        assert piece.inputs is inputs


def test_every_size_of_piece_can_be_run_before_it_is_needed() -> None:
    """Up to the largest that there is, whatever the limit: one tile is always computed at once."""
    for most, largest in ((0, 64), (3_000_000, 160), (1 << 30, 512)):
        sizes, smaller = [], 0
        for size in buckets_up_to(512):
            inputs = uncut_inputs(smaller + 1, [SHAPE], 512, most)
            if inputs is not None:
                sizes.append(len(inputs.token_ids))
                assert set(inputs.block_ids) == {SCRATCH_BLOCK}
            smaller = size
        assert sizes == list(buckets_up_to(largest))


# ---------------------------------------------------------------- the executor


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return open_model(resolve(str(write_checkpoint("gemma2", tmp_path_factory.mktemp("made") / "gemma2"))))


def check(driver: Driver, model: Model, slot: int, tokens: list[int]) -> None:
    exact = forward(model, tokens, NUM_TOKENS)
    assert np.abs(driver.logits(slot) - exact[driver.computed[slot] - 1]).max() < TOLERANCE


def test_prefixes_preemption_fillers_and_lone_tokens(model: Model) -> None:
    """What a batch does to blocks besides growing: they are shared, given back and computed again."""
    driver = loaded(model, "float32")
    tokens = tokens_of("gemma2")
    other = [*tokens[:64], *reversed(tokens[64:])]
    driver.join(0, tokens, 70)
    driver.step({0: 70})
    check(driver, model, 0, tokens)
    driver.join(1, other, 66, blocks=driver.tables[0][:2])  # two blocks of it are there
    driver.step({1: 1}, [0])
    driver.step({1: 1}, [0])
    for slot, one in ((0, tokens), (1, other)):
        check(driver, model, slot, one)
    driver.step({}, [1], fillers=[0])
    check(driver, model, 1, other)
    kept = driver.leave(1, keep=0)
    assert kept == []
    driver.join(2, other, 40, num_known=67)  # preempted: 27 tokens were generated before
    driver.step({2: 40}, [0])
    driver.step({2: 27}, [0])
    check(driver, model, 2, other)
    check(driver, model, 0, tokens)
    driver.step({}, [2, 0])
    check(driver, model, 2, other)


@pytest.mark.long
def test_a_step_in_pieces_gives_the_same(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    options = ExecutorOptions(max_num_seqs=4, max_model_len=320, dtype="float32", kv_cache_memory_bytes=1 << 24)
    whole = Program(model, options)
    monkeypatch.setattr(program, "max_piece_bytes", lambda _: 0)
    cut = Program(model, options)
    rng = np.random.default_rng(0)
    for inputs in (step([0, 0, 0], [130, 1, 66], rng), step([64, 1, 64], [65, 2, 3], rng)):
        states = []
        for one in (whole, cut):
            one.start(inputs)
            states.append(one.hidden_states().copy())
        assert np.abs(states[0] - states[1]).max() < 1e-4
    assert len(cut._pieces) > 2 and len(whole._pieces) == 1


@pytest.mark.long
def test_sizes_are_prepared_where_steps_are_cut(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of one token, which sizes are run with at start, are pieces of their own; chunks are not."""
    monkeypatch.setattr(program, "max_piece_bytes", lambda _: 0)
    driver = loaded(model, "float32")
    driver.join(0, tokens_of("gemma2"), 70)
    driver.step({0: 40})
    driver.step({0: 30})
    check(driver, model, 0, tokens_of("gemma2"))


@pytest.mark.long
def test_what_is_not_a_number_stays_with_its_sequence(model: Model, tmp_path: Path) -> None:
    """A sequence gets the blocks of one that overflowed; what it has not filled of the last is still there."""
    weights = weights_of("gemma2")
    weights["model.embed_tokens.weight"][BAD_TOKEN] = 1e38
    (tmp_path / "config.json").write_text(json.dumps(CONFIGS["gemma2"]))
    write_safetensors(tmp_path / "model.safetensors", {key: encode(value, "F32") for key, value in weights.items()})
    driver = loaded(open_model(resolve(str(tmp_path))), "float32")
    tokens = [token for token in tokens_of("gemma2") if token != BAD_TOKEN]
    driver.join(0, [BAD_TOKEN] * 64, 64)
    driver.step({0: 64})
    caches = driver.executor._program.cache  # type: ignore[attr-defined]
    assert all(np.isfinite(tensor.data).all() for tensor in caches.values())
    assert max(np.abs(tensor.data).max() for tensor in caches.values()) > 1e20
    driver.free = driver.tables[0] + driver.free
    driver.leave(0)
    driver.join(1, tokens, 32)
    driver.step({1: 32})
    for _ in range(2):
        driver.step({}, [1])
        exact = forward(model, tokens, NUM_TOKENS)[driver.computed[1] - 1]
        others = np.arange(len(exact)) != BAD_TOKEN
        assert np.abs(driver.logits(1) - exact)[others].max() < TOLERANCE


def test_a_cache_in_eight_bits_is_refused(model: Model) -> None:
    options = ExecutorOptions(max_num_seqs=1, max_model_len=64, kv_cache_dtype="u8", kv_cache_memory_bytes=1 << 24)
    with pytest.raises(
        InvalidOption, match="a u8 key/value cache is not possible where attention scores have a soft cap"
    ):
        Program(model, options)


def test_what_it_takes_is_counted(model: Model, tmp_path: Path) -> None:
    plain = open_model(resolve(str(write_checkpoint("gemma3", tmp_path / "gemma3"))))
    with_cap, without = memory_need(model, "int8", "bf16"), memory_need(plain, "int8", "bf16")
    assert with_cap.has_cap and not without.has_cap
    assert with_cap.running_bytes - without.running_bytes > 200 << 20
    assert expected_tokens_per_s(with_cap, 2, 1000, 1e10) < expected_tokens_per_s(without, 2, 1000, 1e10)

from __future__ import annotations

import json
from pathlib import Path

import pytest

from chairlift.bench.datasets import Sample, custom_samples, random_samples, sharegpt_samples
from chairlift.core.errors import InvalidOption


class Letters:
    """A tokenizer of one token a letter."""

    vocab_size = 7

    def encode(self, text: str) -> list[int]:
        return [ord(letter) % 7 for letter in text]


def test_random_words() -> None:
    samples = random_samples(50, input_len=10, output_len=4, range_ratio=0.5, prefix_len=3, seed=1)
    prompts = [str(sample.prompt).split() for sample in samples]
    assert len({tuple(words[:3]) for words in prompts}) == 1
    assert [len(words) for words in prompts] == [sample.num_input_tokens for sample in samples]
    assert {len(words) for words in prompts} == set(range(8, 19))
    assert {sample.num_output_tokens for sample in samples} == {2, 3, 4, 5, 6}
    assert len({sample.prompt for sample in samples if isinstance(sample.prompt, str)}) == 50
    assert samples == random_samples(50, input_len=10, output_len=4, range_ratio=0.5, prefix_len=3, seed=1)
    assert samples != random_samples(50, input_len=10, output_len=4, range_ratio=0.5, prefix_len=3, seed=2)


def test_random_token_ids() -> None:
    samples = random_samples(20, input_len=6, output_len=4, tokenizer=Letters())
    assert all(isinstance(sample.prompt, list) and len(sample.prompt) == 6 for sample in samples)
    assert {token for sample in samples for token in sample.prompt} == set(range(7))


@pytest.mark.parametrize("wrong", [{"input_len": 0}, {"output_len": 0}, {"range_ratio": 1.0}, {"prefix_len": -1}])
def test_random_prompts_need_lengths(wrong: dict[str, int]) -> None:
    with pytest.raises(InvalidOption):
        random_samples(1, **({"input_len": 1, "output_len": 1} | wrong))  # type: ignore[arg-type]


def sharegpt(path: Path, *pairs: tuple[str, ...]) -> Path:
    said = [{"conversations": [{"from": "x", "value": text} for text in pair]} for pair in pairs]
    path.write_text(json.dumps(said))
    return path


def test_sharegpt_takes_first_turns_that_are_long_enough(tmp_path: Path) -> None:
    path = sharegpt(
        tmp_path / "said.json",
        ("one two three four", "a b c d e", "ignored"),
        ("too short", "a b c d e"),
        ("alone in the world",),
    )
    good = Sample("one two three four", 4, 5)
    assert sharegpt_samples(path, 3, output_len=None, seed=0) == [good] * 3
    assert sharegpt_samples(path, 1, output_len=9, seed=0) == [Sample("one two three four", 4, 9)]
    (counted,) = sharegpt_samples(sharegpt(path, ("abcd", "abcde")), 1, output_len=None, seed=0, tokenizer=Letters())
    assert counted == Sample("abcd", 4, 5)


def test_sharegpt_order_is_the_seeds(tmp_path: Path) -> None:
    path = sharegpt(tmp_path / "said.json", *((f"a b c {i}", "a b c d") for i in range(30)))
    first = sharegpt_samples(path, 30, output_len=None, seed=1)
    assert first == sharegpt_samples(path, 30, output_len=None, seed=1)
    assert first != sharegpt_samples(path, 30, output_len=None, seed=2)
    assert len({sample.prompt for sample in first if isinstance(sample.prompt, str)}) == 30


@pytest.mark.parametrize(
    "text", ["{", "[]", "{}", "[1]", '[{"conversations": 3}]', '[{"conversations": [{"v": 1}]}]', "3"]
)
def test_files_that_are_not_sharegpt(tmp_path: Path, text: str) -> None:
    path = tmp_path / "bad.json"
    path.write_text(text)
    with pytest.raises(InvalidOption, match=r"bad\.json"):
        sharegpt_samples(path, 1, output_len=None, seed=0)


def test_custom_lines(tmp_path: Path) -> None:
    path = tmp_path / "asked.jsonl"
    path.write_text('{"prompt": "a b", "output_tokens": 3}\n\n{"prompt": [4, 5, 6]}\n')
    assert custom_samples(path, 3, output_len=8) == [Sample("a b", 2, 8), Sample([4, 5, 6], 3, 8), Sample("a b", 2, 8)]
    assert custom_samples(path, 1, output_len=None) == [Sample("a b", 2, 3)]
    with pytest.raises(InvalidOption, match=r"asked\.jsonl:3: no 'output_tokens'"):
        custom_samples(path, 2, output_len=None)


@pytest.mark.parametrize(
    "line", ["{", "[]", "{}", '{"prompt": ""}', '{"prompt": []}', '{"prompt": [1.5]}', '{"prompt": [true]}']
)
def test_custom_lines_that_are_wrong(tmp_path: Path, line: str) -> None:
    path = tmp_path / "asked.jsonl"
    path.write_text(line)
    with pytest.raises(InvalidOption, match=r"asked\.jsonl:1"):
        custom_samples(path, 1, output_len=8)


def test_files_that_are_not_there(tmp_path: Path) -> None:
    with pytest.raises(InvalidOption):
        custom_samples(tmp_path / "none", 1, output_len=8)
    with pytest.raises(InvalidOption):
        sharegpt_samples(tmp_path / "none", 1, output_len=None, seed=0)

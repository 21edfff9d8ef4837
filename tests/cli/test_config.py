"""Values from a file and from the environment become what the command line would have made of them."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from chairlift.cli.config import environment_defaults, file_defaults
from chairlift.cli.numbers import count
from chairlift.cli.options import add_engine_flags
from chairlift.core.errors import InvalidOption


@pytest.fixture
def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser()
    add_engine_flags(parser, positional_model=True)
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--served-model-name", nargs="+")
    parser.add_argument("--api-key", action="append")
    parser.add_argument("--disable-log-stats", action="store_true")
    return parser


def read(parser: argparse.ArgumentParser, folder: Path, text: str) -> dict[str, object]:
    path = folder / "config.yaml"
    path.write_text(text, encoding="utf-8")
    return file_defaults(parser, path)


def test_names_with_hyphens_and_underscores(parser: argparse.ArgumentParser, tmp_path: Path) -> None:
    text = """
model: some/folder
max-num-seqs: 16
max_model_len: 8k
kv-cache-memory-bytes: 2G
enable-prefix-caching: false
disable_log_stats: true
served-model-name: [a, b]
api-key: secret
port:
"""
    assert read(parser, tmp_path, text) == {
        "model": "some/folder",
        "max_num_seqs": 16,
        "max_model_len": 8000,
        "kv_cache_memory_bytes": 2 << 30,
        "enable_prefix_caching": False,
        "disable_log_stats": True,
        "served_model_name": ["a", "b"],
        "api_key": ["secret"],
    }


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("max-nun-seqs: 3", "max-nun-seqs"),
        ("port: 2001-99-99", "month"),
        ("help: true", "help"),
        ("config: other.yaml", "config"),
        ("3: 4", "'3'"),
        ("max-num-seqs: many", "max-num-seqs"),
        ("max-num-seqs: [1, 2]", "max-num-seqs"),
        ("max-num-seqs: {a: 1}", "max-num-seqs"),
        ("port: 1.5", "port"),
        ("dtype: float8", "dtype"),
        ("enable-prefix-caching: perhaps", "enable-prefix-caching"),
        ("[1, 2]", "must map"),
        ("{{{", "not YAML"),
        ("!!python/object:os.system {}", "not YAML"),
    ],
)
def test_what_makes_no_sense_is_named(parser: argparse.ArgumentParser, tmp_path: Path, text: str, named: str) -> None:
    with pytest.raises(InvalidOption, match=r"config\.yaml") as caught:
        read(parser, tmp_path, text)
    assert named in str(caught.value)


def test_a_file_that_is_not_there(parser: argparse.ArgumentParser, tmp_path: Path) -> None:
    with pytest.raises(InvalidOption, match="cannot be read"):
        file_defaults(parser, tmp_path / "none.yaml")


def test_a_flag_that_says_no_says_so_in_a_file_too(parser: argparse.ArgumentParser, tmp_path: Path) -> None:
    assert read(parser, tmp_path, "no-enable-prefix-caching: true") == {"enable_prefix_caching": False}
    assert read(parser, tmp_path, "no-prefill-first: false") == {"prefill_first": True}
    parser.add_argument("--no-stream", dest="stream", action="store_false")
    assert read(parser, tmp_path, "no-stream: true") == {"stream": False}
    assert read(parser, tmp_path, "no-stream: false") == {"stream": True}


def test_policies_and_weights(parser: argparse.ArgumentParser, tmp_path: Path) -> None:
    text = "scheduling-policy: fair\ntenant-weights: a=2, b=0.5\nbatching: dynamic\nmax-batch-wait-ms: 20"
    assert read(parser, tmp_path, text) == {
        "scheduling_policy": "fair",
        "tenant_weights": {"a": 2.0, "b": 0.5},
        "batching": "dynamic",
        "max_batch_wait_ms": 20.0,
    }
    with pytest.raises(InvalidOption, match="tenant-weights: not weights such as name=2"):
        read(parser, tmp_path, "tenant-weights: a")


def test_an_empty_file_changes_nothing(parser: argparse.ArgumentParser, tmp_path: Path) -> None:
    assert read(parser, tmp_path, "# nothing\n") == {}


def test_the_environment(parser: argparse.ArgumentParser) -> None:
    environment = {
        "CHAIRLIFT_MAX_NUM_SEQS": "4",
        "CHAIRLIFT_ENABLE_PREFIX_CACHING": "no",
        "CHAIRLIFT_API_KEY": "k",
        "MAX_MODEL_LEN": "5",
    }
    assert environment_defaults(parser, environment) == {
        "max_num_seqs": 4,
        "enable_prefix_caching": False,
        "api_key": ["k"],
    }
    with pytest.raises(InvalidOption, match="CHAIRLIFT_DTYPE"):
        environment_defaults(parser, {"CHAIRLIFT_DTYPE": "tiny"})


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0", 0),
        ("4096", 4096),
        ("2k", 2000),
        ("2K", 2048),
        ("1.5G", 3 << 29),
        ("2g", 2 * 10**9),
        ("2GiB", 2 << 30),
        ("2 GB", 2 * 10**9),
        ("512MiB", 512 << 20),
        ("1T", 1 << 40),
    ],
)
def test_counts(text: str, value: int) -> None:
    assert count(text) == value


@pytest.mark.parametrize("text", ["", "G", "-1", "1.3", "2X", "2 G B", "nan", "1e9", "0x10", "1.0000001k"])
def test_what_is_no_count(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError):
        count(text)

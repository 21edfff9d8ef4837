"""Buckets, step rates and the size of the cache: small arithmetic that decides how a step looks."""

from __future__ import annotations

import mmap
from pathlib import Path

import pytest
from openvino import Type

from chairlift.core.errors import InvalidOption
from chairlift.executors.openvino import cache
from chairlift.executors.openvino.buckets import buckets_up_to, round_down, round_up
from chairlift.executors.openvino.cache import CachePort, allocate, available_bytes, num_cache_blocks
from chairlift.executors.openvino.rates import StepRates, fit_rates, suggest_token_budget


def test_buckets_hold_their_rows_with_little_padding() -> None:
    sizes = buckets_up_to(5000)
    assert sizes == sorted(set(sizes))
    for n in range(1, 5001):
        assert n <= round_up(n) <= max(n, n * 1.25)
        assert round_up(n) == min(size for size in sizes if size >= n)
        assert round_down(n) == max(size for size in sizes if size <= n)
    assert [round_up(n) for n in (1, 2, 3, 5, 8, 9, 33, 64, 65)] == [1, 2, 3, 5, 8, 10, 40, 64, 80]


def test_rates_are_the_line_through_what_was_measured() -> None:
    rates = fit_rates((1, 0.011), (101, 0.111), (2000, 0.004))
    assert rates.step_s(1) == pytest.approx(0.011)
    assert rates.step_s(101) == pytest.approx(0.111)
    assert rates.step_s(1, 1000) == pytest.approx(0.013)


@pytest.mark.parametrize("small_s", [0.020, 0.040, 0.100])
def test_a_disturbed_measurement_does_no_harm(small_s: float) -> None:
    """The small step took as long as the large one, or longer: half of the large one is still the tokens' time."""
    rates = fit_rates((1, small_s), (64, 0.040), (100, -0.001))
    assert rates.step_s(64) == pytest.approx(0.040)
    assert rates.base_s == pytest.approx(0.020, abs=0.001) and rates.context_s == 0
    assert suggest_token_budget(rates, 4) == 256


@pytest.mark.parametrize(("token_s", "budget"), [(0.35e-3, 256), (0.1e-3, 896), (1e-3, 160), (18e-3, 10), (5.0, 8)])
def test_token_budget_keeps_a_step_short_but_serves_everybody(token_s: float, budget: int) -> None:
    rates = StepRates(0.01, token_s, 0.0)
    assert suggest_token_budget(rates, max_num_seqs=8) == budget
    assert budget == 8 or rates.step_s(budget) <= 0.2
    assert suggest_token_budget(rates, max_num_seqs=1000) >= 1000


def test_cache_takes_what_it_is_given_less_a_scratch_block() -> None:
    assert num_cache_blocks(1000, 32, memory_bytes=10_999, max_num_seqs=64, max_model_len=4096) == 9
    assert num_cache_blocks(1000, 32, memory_bytes=10**9, max_num_seqs=3, max_model_len=33) == 6
    assert num_cache_blocks(1000, 32, memory_bytes=2000, max_num_seqs=3, max_model_len=33) == 1
    with pytest.raises(InvalidOption, match="at least 2000 bytes, but may have only 1999"):
        num_cache_blocks(1000, 32, memory_bytes=1999, max_num_seqs=3, max_model_len=33)


def test_a_cache_that_the_machine_has_no_memory_for_is_refused_before_it_is_used() -> None:
    """The system would give it out, and end the process when it is written to."""
    with pytest.raises(InvalidOption, match="does not fit"):
        num_cache_blocks(1 << 20, 32, memory_bytes=1 << 50, max_num_seqs=1 << 16, max_model_len=1 << 20)


def test_what_is_about_to_be_given_back_counts_as_free(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "available_bytes", lambda: 10_000)
    for returning, count in ((0, 2), (10_000, 5)):
        sizes = {"max_num_seqs": 64, "max_model_len": 4096, "returning_bytes": returning}
        assert num_cache_blocks(1000, 32, memory_bytes=None, **sizes) == count
    with pytest.raises(InvalidOption, match="does not fit: 10000 bytes"):
        num_cache_blocks(1000, 32, memory_bytes=15_000, max_num_seqs=64, max_model_len=4096)
    assert num_cache_blocks(1000, 32, memory_bytes=15_000, **sizes) == 14


def test_more_memory_than_there_is_gives_one_clear_line() -> None:
    port = CachePort("key_cache.0", Type.f32, (8, 32, 128))
    with pytest.raises(InvalidOption, match=r"cannot reserve a key/value cache of 1000000000000 blocks"):
        allocate([port], 10**12)


def test_cache_starts_with_zeros() -> None:
    ports = [CachePort("key_cache.0", Type.bf16, (2, 32, 64)), CachePort("value_cache.0", Type.u8, (2, 32, 72))]
    tensors = allocate(ports, 3)
    assert [list(tensor.shape) for tensor in tensors.values()] == [[3, 2, 32, 64], [3, 2, 32, 72]]
    assert not any(tensor.data.view("u1").any() for tensor in tensors.values())


def test_huge_pages_are_asked_for_and_done_without_where_there_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    port = CachePort("key_cache.0", Type.bf16, (2, 32, 64))
    tensor = allocate([port], 1024)["key_cache.0"]
    maps = Path("/proc/self/smaps")
    if maps.exists():
        address, flags = tensor.data.ctypes.data + (1 << 19), []
        for line in maps.read_text().splitlines():
            if "-" in line.split()[0]:
                first, last = (int(part, 16) for part in line.split()[0].split("-"))
                inside = first <= address < last
            elif line.startswith("VmFlags:") and inside:
                flags = line.split()
        assert "hg" in flags or not Path("/sys/kernel/mm/transparent_hugepage").exists()
    monkeypatch.setattr(mmap, "MADV_HUGEPAGE", 12345)  # as a kernel without them answers: no such advice
    assert not allocate([port], 3)["key_cache.0"].data.any()


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_free_memory_is_the_machines_or_the_control_groups(tmp_path: Path) -> None:
    write(tmp_path / "proc/meminfo", "MemTotal: 2000 kB\nMemFree: 10 kB\nMemAvailable:    1000 kB\n")
    assert available_bytes(tmp_path) == 1_024_000
    write(tmp_path / "sys/fs/cgroup/memory.max", "max\n")
    write(tmp_path / "sys/fs/cgroup/memory.current", "700000\n")
    assert available_bytes(tmp_path) == 1_024_000
    write(tmp_path / "sys/fs/cgroup/memory.max", "900000\n")
    assert available_bytes(tmp_path) == 200_000
    write(tmp_path / "sys/fs/cgroup/memory.stat", "anon 100\ninactive_file 50000\nactive_file 7\n")
    assert available_bytes(tmp_path) == 250_000
    write(tmp_path / "sys/fs/cgroup/memory.current", "960000\n")
    assert available_bytes(tmp_path) == 0


def test_free_memory_in_a_version_1_control_group(tmp_path: Path) -> None:
    write(tmp_path / "proc/meminfo", "MemAvailable: 1000 kB\n")
    write(tmp_path / "sys/fs/cgroup/memory/memory.limit_in_bytes", "500000\n")
    write(tmp_path / "sys/fs/cgroup/memory/memory.usage_in_bytes", "100000\n")
    assert available_bytes(tmp_path) == 400_000

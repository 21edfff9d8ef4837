"""How fast this machine reads its memory, which is what bounds the first stream of tokens."""

from __future__ import annotations

import os
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np

THREAD_BYTES = 96 << 20
"""Read by each thread: more than a share of the last cache."""
REPEATS = 4


def measure_bandwidth(num_threads: int | None = None) -> float:
    """Bytes that all threads together read in a second, in order; takes about a third of a second.

    The best of some runs: others use the memory too.
    """
    num_threads = num_threads or len(os.sched_getaffinity(0))
    words = np.ones((num_threads, THREAD_BYTES // 8), np.uint64)
    best_s = float("inf")
    with ThreadPoolExecutor(num_threads) as pool:
        for _ in range(REPEATS):
            begun = time.perf_counter()
            list(pool.map(np.max, words))
            best_s = min(best_s, time.perf_counter() - begun)
    return words.nbytes / best_s

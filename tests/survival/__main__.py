"""One bar of survival, at one size: `PYTHONPATH=tests python -m survival S6 --tier smoke`.

The last line is a JSON object with the figures; status 0 if the bar is met. The short tier is what the tests run, with
time limits that a busy machine keeps; smoke takes up to a minute or two, long far more. Bars that tests hold
(`suites.py`) have no tier between short and long.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable

from survival.client import Report
from survival.crashes import Crashes, crashes
from survival.storm import Storm, storm
from survival.streams import Dead, Held, Stops, dead_readers, shutdowns, streams_held
from survival.suites import SUITES

SOAK = {"fault_share": 0.1, "marks": (0.5, 1.0), "max_growth_kib": 2 << 10}

BARS: dict[str, dict[str, Callable[[], Report]]] = {
    "S6": {
        "short": lambda: streams_held(Held(100, 3.0), max_gap_ratio=10.0),
        "smoke": lambda: streams_held(Held()),
        "long": lambda: streams_held(Held(5000, 600.0, 0.5)),
    },
    "S7": {
        "short": lambda: storm(Storm(300)),
        "smoke": lambda: storm(Storm()),
        "long": lambda: storm(Storm(200_000)),
    },
    "S11": {
        "short": lambda: dead_readers(Dead(4, 4000, 400), min_share=0.5, slack_kib=4096),
        "smoke": lambda: dead_readers(Dead()),
        "long": lambda: dead_readers(Dead(500, 10_000, 1500)),
    },
    "S14": {
        "short": lambda: crashes(Crashes(1, 1, 4, 0.1, 1.0)),
        "smoke": lambda: crashes(Crashes()),
        "long": lambda: crashes(Crashes(100, 50)),
    },
    "S15": {
        "short": lambda: shutdowns(Stops(1, 20, 50), max_ready_s=2.0, max_exit_s=4.0),
        "smoke": lambda: shutdowns(Stops()),
        "long": lambda: shutdowns(Stops(50)),
    },
    "S18": {
        "short": lambda: storm(Storm(400, fault_share=0.1, num_kills=1, max_growth_kib=16 << 10)),
        "smoke": lambda: storm(Storm(15_000, num_kills=4, **SOAK)),  # type: ignore[arg-type]
        "long": lambda: storm(Storm(500_000, num_kills=100, **SOAK)),  # type: ignore[arg-type]
    },
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bar", choices=sorted([*BARS, *SUITES], key=lambda bar: int(bar[1:])))
    parser.add_argument("--tier", choices=("short", "smoke", "long"), default="smoke")
    arguments = parser.parse_args()
    if arguments.bar in SUITES:
        report = SUITES[arguments.bar].run(is_long=arguments.tier == "long")
    else:
        report = BARS[arguments.bar][arguments.tier]()
    print(json.dumps({"bar": arguments.bar, "tier": arguments.tier} | report))
    return 0 if report["met"] else 1


if __name__ == "__main__":
    sys.exit(main())

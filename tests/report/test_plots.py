"""Pictures as files, of whatever runs and names there are; they need matplotlib."""

from __future__ import annotations

from pathlib import Path

import pytest

from chairlift.report.build import make_run
from chairlift.report.data import Run
from chairlift.report.outcomes import Outcomes
from chairlift.report.timeline import Timeline
from report.test_page import hostile_run
from report.test_timeline import pictured

pytest.importorskip("matplotlib", reason="pictures need the extra")


def test_names_are_drawn_as_they_are(tmp_path: Path) -> None:
    written = write(tmp_path, [hostile_run(r"x$^{$ \frac{"), hostile_run("_漢字 $")])
    assert len(written) == 6


@pytest.mark.parametrize("seed", [0, 5, 9, 20])
def test_every_kind_of_run_is_drawn(seed: int, tmp_path: Path) -> None:
    for path in write(tmp_path, [pictured(seed)[1]]):
        assert path.read_bytes().startswith(b"\x89PNG")


def test_a_run_in_which_nothing_happened_is_drawn(tmp_path: Path) -> None:
    scheduler, outcomes = pictured(0)[2].scheduler, Outcomes()
    assert len(write(tmp_path, [make_run("empty", "", [Timeline("engine", scheduler, outcomes)], outcomes)])) == 6


def test_slots_in_which_nobody_sat_are_cut_off() -> None:
    from chairlift.report.plots import _all_slots

    run = pictured(0)[1]
    last = max(run.engines[0].stays.slot)
    assert _all_slots([run]).axes[0].get_ylim() == (last + 1, 0)


def write(folder: Path, runs: list[Run]) -> list[Path]:
    """Imported here: the module itself needs what may not be there."""
    from chairlift.report.plots import write_pictures

    return write_pictures(folder, runs)

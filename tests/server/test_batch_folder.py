"""A folder of batches in which somebody else meddles: what a file has become is not followed or waited for."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from chairlift.server.batches import answering
from chairlift.server.batches.content import append_results
from server.batch_files import Asking, line
from server.fake_worker import FakeOptions
from server.running import running_server

SECRET = b"somebody else's\n"
ONE_BY_ONE = FakeOptions(max_num_seqs=1)


def link(path: Path) -> None:
    path.symlink_to(path.parents[1] / "outside")


def after_the_first_results(monkeypatch: pytest.MonkeyPatch, meddle: Callable[[Path], None]) -> None:
    """Do something to the file of results, once, when there are some."""
    done = False

    def append(output: Path, errors: Path, results: list[tuple[bool, bytes]]) -> None:
        nonlocal done
        append_results(output, errors, results)
        if not done:
            done = True
            output.unlink()
            meddle(output)

    monkeypatch.setattr(answering, "append_results", append)


@pytest.mark.parametrize("swap", [link, os.mkfifo, os.mkdir])
def test_results_go_into_no_file_that_is_not_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, swap: Callable[[Path], None]
) -> None:
    """And whatever is there instead holds up nobody else."""
    (tmp_path / "outside").write_bytes(SECRET)
    after_the_first_results(monkeypatch, swap)
    with running_server(ONE_BY_ONE, batch_dir=str(tmp_path)) as server:
        anna = Asking(server)
        batch = anna.ended(anna.begin([line(i) for i in range(9)]))
        assert (batch["status"], batch["errors"]["data"][0]["code"]) == ("failed", "disk_error")
        assert anna.ended(anna.begin([line("next")]))["status"] == "completed"
        assert (tmp_path / "outside").read_bytes() == SECRET


@pytest.mark.parametrize("swap", [link, os.mkfifo, os.mkdir])
def test_what_is_downloaded_is_no_file_that_is_not_ours(tmp_path: Path, swap: Callable[[Path], None]) -> None:
    with running_server(batch_dir=str(tmp_path)) as server:
        (tmp_path / "outside").write_bytes(SECRET)
        anna = Asking(server)
        file_id = anna.upload([line("a")])
        (tmp_path / "files" / file_id).unlink()
        swap(tmp_path / "files" / file_id)
        status, _, content = server.request("GET", f"/v1/files/{file_id}/content")
        assert (status, json.loads(content)["error"]["code"]) == (500, "disk_error")
        assert anna.upload([line("b")])


def test_a_batch_whose_results_are_gone_is_not_complete(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    after_the_first_results(monkeypatch, lambda path: None)
    with running_server(ONE_BY_ONE, batch_dir=str(tmp_path)) as server:
        anna = Asking(server)
        batch = anna.ended(anna.begin([line(i) for i in range(9)]))
        assert batch["status"] == "failed"
        assert "are gone" in batch["errors"]["data"][0]["message"]
        assert len(anna.results(batch["output_file_id"])) == batch["request_counts"]["completed"] < 9


def test_a_folder_among_the_files_is_left_where_it_is(tmp_path: Path) -> None:
    (tmp_path / "files" / f"file-{'0' * 24}").mkdir(parents=True)
    with running_server(batch_dir=str(tmp_path)) as server:
        assert Asking(server).get("/v1/files")["data"] == []
    assert (tmp_path / "files" / f"file-{'0' * 24}").is_dir()

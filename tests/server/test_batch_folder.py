"""A folder of batches in which somebody else meddles: what a file has become is not followed or waited for."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from server.batch_files import Asking, follow, line
from server.fake_worker import FakeOptions
from server.running import running_server

SLOW = FakeOptions(max_num_seqs=2, step_s=0.002, heartbeat_s=0.05)
SECRET = b"somebody else's\n"


def link(path: Path) -> None:
    path.symlink_to(path.parents[1] / "outside")


@pytest.mark.parametrize("swap", [link, os.mkfifo, os.mkdir])
def test_results_go_into_no_file_that_is_not_ours(tmp_path: Path, swap: Callable[[Path], None]) -> None:
    """And whatever is there instead holds up nobody else."""
    folder = tmp_path / "folder"
    with running_server(SLOW, batch_dir=str(folder)) as server:
        (folder / "outside").write_bytes(SECRET)
        anna = Asking(server)
        batch_id = anna.begin([line(i, max_tokens=9) for i in range(40)])
        follow(lambda: anna.batch(batch_id)["request_counts"]["completed"] >= 2)
        output = folder / "files" / json.loads((folder / "batches" / f"{batch_id}.json").read_bytes())["output_file_id"]
        output.unlink()
        swap(output)
        batch = anna.ended(batch_id)
        assert (batch["status"], batch["errors"]["data"][0]["code"]) == ("failed", "disk_error")
        assert anna.ended(anna.begin([line("next")]))["status"] == "completed"
        assert (folder / "outside").read_bytes() == SECRET


@pytest.mark.parametrize("swap", [link, os.mkfifo, os.mkdir])
def test_what_is_downloaded_is_no_file_that_is_not_ours(tmp_path: Path, swap: Callable[[Path], None]) -> None:
    folder = tmp_path / "folder"
    with running_server(batch_dir=str(folder)) as server:
        (folder / "outside").write_bytes(SECRET)
        anna = Asking(server)
        file_id = anna.upload([line("a")])
        (folder / "files" / file_id).unlink()
        swap(folder / "files" / file_id)
        status, _, content = server.request("GET", f"/v1/files/{file_id}/content")
        assert (status, json.loads(content)["error"]["code"]) == (500, "disk_error")
        assert anna.upload([line("b")])


def test_a_batch_whose_results_are_gone_is_not_complete(tmp_path: Path) -> None:
    with running_server(SLOW, batch_dir=str(tmp_path)) as server:
        anna = Asking(server)
        batch_id = anna.begin([line(i, max_tokens=9) for i in range(40)])
        follow(lambda: anna.batch(batch_id)["request_counts"]["completed"] >= 2)
        record = json.loads((tmp_path / "batches" / f"{batch_id}.json").read_bytes())
        (tmp_path / "files" / record["output_file_id"]).unlink()
        batch = anna.ended(batch_id)
        assert batch["status"] == "failed"
        assert "are gone" in batch["errors"]["data"][0]["message"]
        assert len(anna.results(batch["output_file_id"])) == batch["request_counts"]["completed"] < 40


def test_a_folder_among_the_files_is_left_where_it_is(tmp_path: Path) -> None:
    (tmp_path / "files" / f"file-{'0' * 24}").mkdir(parents=True)
    with running_server(batch_dir=str(tmp_path)) as server:
        assert Asking(server).get("/v1/files")["data"] == []
    assert (tmp_path / "files" / f"file-{'0' * 24}").is_dir()

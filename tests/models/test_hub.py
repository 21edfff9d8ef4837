"""Models from a hub: which files are got, how a cut download goes on, and what is said when it cannot be."""

from __future__ import annotations

import errno
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import NoReturn

import huggingface_hub
import huggingface_hub.constants
import pytest

from chairlift.cli.main import parse
from chairlift.cli.options import ready_options
from chairlift.core.errors import InvalidModel, InvalidOption
from chairlift.llm import LLM
from chairlift.models import hub_download, open_model, resolve
from chairlift.models.fetch import fetched, fetched_text
from chairlift.models.hub_cache import cached_models, model_path
from chairlift.models.hub_files import gguf_parts, small_files
from chairlift.models.hub_name import HubName, parse_hub_name
from chairlift.models.inventory import inventory
from chairlift.models.resolve import hub_name_of
from models.fake_hub import COMMIT, FakeHub, running
from models.writers import tiny_llama

REPO = "org/tiny"
NAME = HubName(REPO)
EXTRA = {"pytorch_model.bin": b"x", "modeling_evil.py": b"x", "README.md": b"x", "onnx/model.onnx": b"x"}


class Shown:
    """Keeps what a progress bar would show."""

    def __init__(self) -> None:
        self.steps: list[tuple[int, int]] = []

    def __call__(self, _: str) -> Shown:
        return self

    def step(self, done_bytes: int, total_bytes: int) -> None:
        self.steps.append((done_bytes, total_bytes))


def quiet(_: str) -> hub_download.Progress:
    return lambda done_bytes, total_bytes: None


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    folder = tiny_llama().write_folder(tmp_path_factory.mktemp("made") / "tiny")
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.fixture(scope="module")
def tiny_gguf(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return tiny_llama().write_gguf(tmp_path_factory.mktemp("made") / "tiny.gguf").read_bytes()


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A cache of its own, and no way to the real hub."""
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(huggingface_hub.constants, "HF_TOKEN_PATH", str(tmp_path / "no-token"))
    monkeypatch.setenv("HF_TOKEN", "")
    monkeypatch.delenv("HUGGING_FACE_HUB_TOKEN", raising=False)
    _point_at(monkeypatch, "http://127.0.0.1:9")
    yield tmp_path / "hub"
    huggingface_hub.close_session()


def _point_at(monkeypatch: pytest.MonkeyPatch, endpoint: str) -> None:
    """What HF_ENDPOINT does, which is read once."""
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", endpoint)
    template = endpoint + "/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr(huggingface_hub.constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)


@pytest.fixture
def hub(tiny: dict[str, bytes], monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    """The tiny checkpoint, with what nobody should get beside it."""
    with running(FakeHub(REPO, {**tiny, **EXTRA}, stored={"model.safetensors"})) as fake:
        _point_at(monkeypatch, fake.endpoint)
        yield fake


def pull(name: HubName = NAME, waits: list[float] | None = None) -> Path:
    return hub_download.pull(name, quiet, ([] if waits is None else waits).append)[1]


def refusal(name: HubName = NAME) -> str:
    with pytest.raises(InvalidModel) as error:
        pull(name)
    line = str(error.value)
    assert "\n" not in line and len(line) < 400
    return line


# ---------------------------------------------------------------- names


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("org/name", HubName("org/name")),
        ("Qwen/Qwen3-0.6B@v1.0", HubName("Qwen/Qwen3-0.6B", "v1.0")),
        ("org/name@refs/pr/1", HubName("org/name", "refs/pr/1")),
        ("org/name:Q4_K_M", HubName("org/name", "main", "Q4_K_M")),
        ("org/name@main:sub/x-*.gguf", HubName("org/name", "main", "sub/x-*.gguf")),
    ],
)
def test_names(text: str, name: HubName) -> None:
    assert parse_hub_name(text) == name
    assert parse_hub_name(str(name)) == name


NO_NAMES = """
name ../name org/.. org/../x org/a/b /org/name ./org/name ~/name org/name@../../x org/name@/x org/name@ org/name:
org/name:../x.gguf org/name:/etc/passwd org/na--me org/name@a..b org/name.gguf org\\name org/name:a\\b org/name.git
"""


@pytest.mark.parametrize(
    "text", [*NO_NAMES.split(), "org/n\u0430me", "org/name\n", "", "org/name:a b", "a" * 300 + "/b"]
)
def test_what_is_no_name(text: str) -> None:
    assert parse_hub_name(text) is None


def test_a_path_that_exists_is_no_name_on_a_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert hub_name_of("org/name") == HubName("org/name")
    (tmp_path / "org" / "name").mkdir(parents=True)
    assert hub_name_of("org/name") is None


# ---------------------------------------------------------------- what is got


def test_only_what_a_model_is_made_of(hub: FakeHub, cache: Path, tiny: dict[str, bytes]) -> None:
    pinned, path = hub_download.pull(NAME, quiet)
    assert pinned == HubName(REPO, COMMIT)
    assert {file.name for file in path.iterdir()} == set(tiny)
    assert all((path / name).read_bytes() == tiny[name] for name in tiny)
    for name in (REPO, str(pinned)):
        files = resolve(name)
        assert (files.name, files.path, files.kind) == (REPO, path, "folder")
    assert open_model(resolve(REPO)).config.num_layers == 2
    assert not list(cache.rglob("*.incomplete"))
    assert [model.name for model in cached_models(cache)] == [REPO]
    assert huggingface_hub.try_to_load_from_cache(REPO, "config.json") == str(path / "config.json")


def test_a_second_pull_gets_nothing_but_the_list(hub: FakeHub) -> None:
    pull()
    hub.asked.clear()
    hub.asked_of_store.clear()
    pull()
    assert [asked.path for asked in hub.asked] == [f"/api/models/{REPO}/revision/main"]
    assert not hub.asked_of_store


def test_a_new_commit_takes_the_place_of_the_old_one_when_it_is_whole(hub: FakeHub) -> None:
    old = pull()
    hub.commit, hub.files["tokenizer_config.json"] = "b" * 40, b"{}"
    hub.statuses = {"tokenizer_config": (404, "EntryNotFound")}
    assert "missing" in refusal()
    assert resolve(REPO).path == old
    hub.statuses = {}
    new = pull()
    assert new.name == "b" * 40 and resolve(REPO).path == new and resolve(f"{REPO}@{COMMIT}").path == old


def test_shards_are_those_of_the_index(hub: FakeHub, tiny: dict[str, bytes]) -> None:
    index = b'{"weight_map": {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}}'
    shards = {f"model-0000{i}-of-00002.safetensors": b"%d" % i for i in (1, 2)}
    hub.files = {"config.json": tiny["config.json"], "model.safetensors.index.json": index, **shards}
    hub.files |= {"consolidated.safetensors": b"x", "model-00003-of-00002.safetensors": b"x"}
    path = pull()
    assert {file.name for file in path.iterdir()} == {"config.json", "model.safetensors.index.json", *shards}
    (path / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(InvalidModel, match=r"model-00002-of-00002.safetensors is not in the cache \(chairlift pull"):
        resolve(REPO)


def test_an_index_cannot_lead_out_of_its_folder(hub: FakeHub) -> None:
    index = b'{"weight_map": {"a": "../../../x.safetensors"}}'
    hub.files = {"config.json": b"{}", "model.safetensors.index.json": index}
    assert "beside it" in refusal()


def test_one_gguf_file_of_several(hub: FakeHub, tiny_gguf: bytes) -> None:
    hub.files = {f"tiny-{kind}.gguf": tiny_gguf for kind in ("Q4_K_S", "Q8_0")} | {"mmproj-tiny-Q8_0.gguf": b"x"}
    hub.stored = set(hub.files)
    assert "has several GGUF files" in refusal()
    pinned, path = hub_download.pull(HubName(REPO, pattern="q8_0"), quiet)
    assert path.name == "tiny-Q8_0.gguf" and path.read_bytes() == tiny_gguf
    assert {file.name for file in path.parent.iterdir()} == {"tiny-Q8_0.gguf"}
    assert resolve(str(pinned)).name == f"{REPO}:q8_0" and resolve(REPO).name == REPO
    assert open_model(resolve(f"{REPO}:Q8_0")).config.num_layers == 2


def test_which_gguf_files_are_meant() -> None:
    files = [
        "m-Q4_K_M.gguf",
        "m-Q4_K_S.gguf",
        "m-Q6_K-00001-of-00002.gguf",
        "m-Q6_K-00002-of-00002.gguf",
        "imatrix.gguf",
    ]
    assert gguf_parts(files, None, REPO) == ["m-Q4_K_M.gguf"]
    assert gguf_parts(files, "*k_s*", REPO) == ["m-Q4_K_S.gguf"]
    assert gguf_parts(files, "Q6_K", REPO) == files[2:4] == gguf_parts(files, files[2], REPO)
    with pytest.raises(InvalidModel, match="has 1 of 2 parts"):
        gguf_parts(files[:3], "Q6_K", REPO)
    with pytest.raises(InvalidModel, match="no GGUF file Q4_K, but m-Q4_K_M"):
        gguf_parts(files, "Q4_K", REPO)
    with pytest.raises(InvalidModel, match="has no GGUF files"):
        gguf_parts(["x.bin", "../x.gguf", "/x.gguf"], None, REPO)


def test_names_of_files_that_lead_elsewhere_are_not_taken() -> None:
    files = [
        "config.json",
        "../x.json",
        "/etc/x.json",
        "a\\b.json",
        "1_Pooling/config.json",
        "sub/x.json",
        "tokenizer.model",
        "additional_chat_templates/tool_use.jinja",
        "additional_chat_templates/../x.jinja",
    ]
    kept = ["1_Pooling/config.json", "additional_chat_templates/tool_use.jinja", "config.json", "tokenizer.model"]
    assert small_files(files) == kept


# ---------------------------------------------------------------- the way there


def test_a_cut_connection_goes_on_where_it_was(hub: FakeHub, tiny: dict[str, bytes]) -> None:
    hub.files = {"config.json": tiny["config.json"], "model.safetensors": tiny["model.safetensors"]}
    hub.cuts = [10, 9999, 1000, 0]  # the second is more than there is
    waits: list[float] = []
    path = pull(waits=waits)
    assert (path / "model.safetensors").read_bytes() == tiny["model.safetensors"]
    assert [asked.range for asked in hub.asked_of_store] == [None, "bytes=1000-", "bytes=1000-"]
    assert waits == [1.0, 1.0, 2.0]


def _begun(cache: Path) -> list[tuple[str, int, str | None]]:
    entries = (entry for entry in inventory(cache) if entry.source == "hub" and entry.summary is None)
    return [(entry.name, entry.file_bytes, entry.note) for entry in entries]


def test_another_process_goes_on_too(hub: FakeHub, tiny: dict[str, bytes], cache: Path) -> None:
    pull_small = {"config.json": tiny["config.json"]}
    hub.files = {**pull_small, "model.safetensors": tiny["model.safetensors"]}
    size = len(tiny["model.safetensors"])
    hub.cuts = [len(pull_small["config.json"]), 1000, *[0] * 5]
    assert "cannot be reached" in refusal()
    assert [path.stat().st_size for path in cache.rglob("*.incomplete")] == [1000]
    assert _begun(cache) == [(REPO, 1000, f"begun: chairlift pull {REPO} goes on")]
    hub.asked_of_store.clear()
    shown = Shown()
    _, path = hub_download.pull(NAME, lambda _: shown.step)
    assert (path / "model.safetensors").read_bytes() == tiny["model.safetensors"]
    assert [asked.range for asked in hub.asked_of_store if asked.method == "GET"] == ["bytes=1000-"]
    assert not _begun(cache)
    assert shown.steps[-1] == (size, size) and shown.steps == sorted(shown.steps)
    assert shown.steps.count((size, size)) == 1 and shown.steps[0][0] > 1000


def test_who_interrupts_keeps_what_came(hub: FakeHub, tiny: dict[str, bytes]) -> None:
    def interrupt(done_bytes: int, _: int) -> None:
        if done_bytes > len(tiny["config.json"]):
            raise KeyboardInterrupt

    hub.files = {"config.json": tiny["config.json"], "model.safetensors": tiny["model.safetensors"]}
    with pytest.raises(KeyboardInterrupt):
        hub_download.pull(NAME, lambda _: interrupt)
    path = pull()
    assert (path / "model.safetensors").read_bytes() == tiny["model.safetensors"]
    (begun,) = (asked.range for asked in hub.asked_of_store if asked.range)
    assert begun.startswith("bytes=") and begun != "bytes=0-"


def test_without_the_library_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "chairlift.models.hub_cache")
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(InvalidModel, match="pip install huggingface-hub"):
        resolve(REPO)


def test_a_server_without_parts_begins_anew(hub: FakeHub, tiny: dict[str, bytes]) -> None:
    hub.knows_ranges = False
    hub.cuts = [10] * 2
    path = pull()
    assert all((path / name).read_bytes() == tiny[name] for name in tiny)


@pytest.mark.parametrize("shift", [-900, 10])
def test_a_server_that_sends_another_part(hub: FakeHub, tiny: dict[str, bytes], shift: int) -> None:
    """One that begins before what was asked for serves; one that begins after it leaves a gap, and is asked again."""
    hub.files = {"config.json": tiny["config.json"], "model.safetensors": tiny["model.safetensors"]}
    hub.cuts, hub.range_shift = [9999, 1000], shift
    waits: list[float] = []
    if shift > 0:
        with pytest.raises(InvalidModel, match="another part than was asked for"):
            pull(waits=waits)
        hub.range_shift = 0
    assert (pull(waits=waits) / "model.safetensors").read_bytes() == tiny["model.safetensors"]
    assert len(waits) == (5 if shift > 0 else 1)
    assert {asked.range for asked in hub.asked_of_store if asked.method == "GET"} == {None, "bytes=1000-"}


def test_more_than_the_hub_says_is_refused_at_once(hub: FakeHub, cache: Path) -> None:
    hub.surplus = b"x"
    assert "not what the hub says it is" in refusal()
    assert len(hub.asked) + len(hub.asked_of_store) < 5 and not list(cache.rglob("*.incomplete"))


def test_two_at_once_get_it_once(hub: FakeHub, tiny: dict[str, bytes]) -> None:
    hub.files["model.safetensors"] = tiny["model.safetensors"]
    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(lambda _: pull(), range(2))
    assert first == second and (first / "model.safetensors").read_bytes() == tiny["model.safetensors"]
    assert [asked.method for asked in hub.asked_of_store].count("GET") == 1


def test_what_came_is_checked(hub: FakeHub, cache: Path, tiny: dict[str, bytes]) -> None:
    for name in ("config.json", "model.safetensors"):
        hub.spoiled = {name}
        assert "not what the hub says it is" in refusal()
        assert not list(cache.rglob("*.incomplete"))
        with pytest.raises(InvalidModel):
            resolve(REPO)
    hub.spoiled = set()
    assert (pull() / "config.json").read_bytes() == tiny["config.json"]


def test_the_token_goes_to_the_hub_alone(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    pull()
    assert {asked.token for asked in hub.asked} == {"Bearer hf_secret"}
    assert hub.asked_of_store and {asked.token for asked in hub.asked_of_store} == {None}


def test_without_a_token_none_is_sent(hub: FakeHub) -> None:
    pull()
    assert {asked.token for asked in hub.asked} == {None}


@pytest.mark.parametrize(
    ("fault", "line"),
    [
        ((401, "RepoNotFound"), r"no such model at 127.0.0.1:\d+, or it is private, and HF_TOKEN is not set"),
        ((403, "GatedRepo"), r"org/tiny is gated: ask for access at http://127.0.0.1:\d+/org/tiny"),
        ((401, "Invalid credentials in Authorization header"), "does not know the token in use"),
        ((403, ""), "forbids it to the token in use"),
        ((404, "RepoNotFound"), "no file or folder org/tiny here"),
        ((429, ""), "too many requests"),
        ((500, ""), "answers with status 500"),
    ],
)
def test_refusals(hub: FakeHub, fault: tuple[int, str], line: str) -> None:
    hub.statuses = {"/api/": fault}
    assert re.search(line, refusal())


def test_a_wrong_revision_and_a_wrong_name(hub: FakeHub) -> None:
    assert refusal(HubName(REPO, "v9")) == "org/tiny has no revision v9"
    assert "no such model" in refusal(HubName("org/other"))


def test_a_server_that_fails_for_a_moment(hub: FakeHub) -> None:
    hub.statuses = {"model.safetensors": (503, "")}
    waits: list[float] = []

    def recover(seconds: float) -> None:
        waits.append(seconds)
        hub.statuses = {}

    _, path = hub_download.pull(NAME, quiet, recover)
    assert waits == [1.0] and (path / "model.safetensors").is_file()


def test_a_server_that_fails_for_good(hub: FakeHub) -> None:
    hub.statuses = {"model.safetensors": (503, "")}
    waits: list[float] = []
    with pytest.raises(InvalidModel, match="answers with status 503"):
        pull(waits=waits)
    assert waits == [1, 2, 4, 8, 16]


def test_a_server_that_says_nothing(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub_download, "ANSWER_TIMEOUT_S", 0.1)
    hub.hold.clear()
    assert "no answer in time" in refusal()


def test_no_network() -> None:
    assert "127.0.0.1:9 cannot be reached" in refusal()


def test_what_is_no_hub(hub: FakeHub) -> None:
    hub.statuses = {"/api/": (200, "")}
    assert "does not answer as a hub does" in refusal()


def test_weights_that_never_came_are_named(cache: Path) -> None:
    (cache / "snapshot").mkdir(parents=True)
    (cache / "snapshot" / "config.json").write_text("{}")
    with pytest.raises(InvalidModel, match=r"model\.safetensors is not in the cache"):
        model_path(cache / "snapshot", NAME)


def test_offline(hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    assert "HF_HUB_OFFLINE forbids to get it" in refusal()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidModel, match=r"forbids to get it$"):
        fetched(REPO, None, quiet)
    (tmp_path / NAME.repo).parent.mkdir()
    with pytest.raises(InvalidModel, match=rf"forbids to get it; as a path, {REPO} is not there$"):
        fetched(REPO, None, quiet)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    path = pull()
    hub.asked.clear()
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    assert hub_download.pull(NAME, quiet) == (HubName(REPO, COMMIT), path) and not hub.asked


def test_what_is_there_is_taken_without_asking(hub: FakeHub, tmp_path: Path) -> None:
    assert fetched(REPO, None, quiet) == f"{REPO}@{COMMIT}"
    hub.asked.clear()
    assert fetched(REPO, None, quiet) == f"{REPO}@{COMMIT}" == fetched(REPO, "main", quiet)
    assert not hub.asked
    hub.commit, hub.revisions = "c" * 40, ("v2",)
    assert fetched(REPO, "v2", quiet) == f"{REPO}@{'c' * 40}" and hub.asked
    assert fetched(str(tmp_path), None, quiet) == str(tmp_path)
    with pytest.raises(InvalidOption, match="a revision goes with a model on a hub"):
        fetched(str(tmp_path), "v2", quiet)
    with pytest.raises(InvalidOption, match="cannot be a branch"):
        fetched(REPO, "../v2", quiet)


def test_a_tokenizer_comes_without_weights(hub: FakeHub, tiny: dict[str, bytes], tiny_gguf: bytes) -> None:
    for name, data in (("tokenizer.json", b"{}"), ("additional_chat_templates/tool_use.jinja", b"x")):
        hub.files[name] = data
    files = fetched_text(REPO, quiet)
    assert files.kind == "folder" and (files.path / "tokenizer.json").read_bytes() == b"{}"
    assert not hub.asked_of_store and not (files.path / "model.safetensors").exists()
    with pytest.raises(InvalidModel, match="chairlift pull"):
        resolve(REPO)
    assert pull() == files.path == fetched_text(REPO, quiet).path
    hub.files = {"tiny-Q8_0.gguf": tiny_gguf}
    hub.commit = "b" * 40
    assert fetched_text(f"{REPO}:Q8_0", quiet).path.read_bytes() == tiny_gguf
    with pytest.raises(InvalidModel, match="not found"):
        fetched_text("no-such-model", quiet)


def test_commands_and_programs_name_models_of_a_hub(hub: FakeHub) -> None:
    arguments = parse(["serve", REPO, "--revision", "main"], {})
    assert ready_options(arguments).model == f"{REPO}@{COMMIT}"
    with pytest.raises(InvalidOption, match="a revision goes with a model on a hub"):
        ready_options(parse(["chat", "--revision", "main"], {}))
    with pytest.raises(InvalidModel, match="no such model"):
        LLM("org/other", revision="main")
    with pytest.raises(InvalidOption, match="unknown option"):
        LLM("org/other", revison="main")


def test_a_disk_without_room(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=1000))
    assert "and 67.1 MB left, but" in refusal() and "has 0.0 MB free" in refusal()
    assert not any("resolve" in asked.path for asked in hub.asked)


def test_a_disk_that_fills_up(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> NoReturn:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(hub_download._Copy, "_receive", full)
    assert refusal() == "org/tiny could not be got: No space left on device"


def test_the_command_and_the_environment(hub: FakeHub, tmp_path: Path) -> None:
    """In a process of its own, where the variables are read as users set them."""
    environment = {**os.environ, "HF_ENDPOINT": hub.endpoint, "HF_HUB_CACHE": str(tmp_path / "other")}
    command = [sys.executable, "-m", "chairlift", "pull", f"{REPO}@main"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0 and REPO in done.stdout and "chairlift serve" in done.stdout, done
    assert (tmp_path / "other" / "models--org--tiny" / "refs" / "main").read_text() == COMMIT

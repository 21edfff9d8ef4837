"""The page: one file, no connections, and nothing that anybody named in it becomes markup."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path
from random import Random

import pytest

from browser import CHROMIUM, browser
from chairlift.cli.report import SimulationRecord
from chairlift.pages.build import program
from chairlift.report.data import Run
from chairlift.report.page import from_html, to_html
from chairlift.report.timeline import Window
from chairlift.sim.router import RoundRobin
from chairlift.sim.run import simulate
from chairlift.sim.workload import Asked, Part, blocks
from sim.worlds import random_setup

HOSTILE = (
    "</script><script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "<!-- <script>",
    "]]>\u2028\u2029&lt;b&gt;",
    "{policy}{style}\x00\ud83d\ude00".encode("utf-16", "surrogatepass").decode("utf-16"),
    "\\u003c/script\\u003e",
    "half a pair: \ud800",
)
SHOWN = tuple(evil.replace("\ud800", "?") for evil in HOSTILE)


def hostile_run(name: str = HOSTILE[0]) -> Run:
    """Everybody has a name that would like to be more."""
    record = SimulationRecord(Window())
    setup = random_setup(Random("page"))
    scheduler = setup.scheduler()
    replica = setup.replica(HOSTILE[1], scheduler=scheduler, on_step=record.follow(HOSTILE[1], scheduler).on_step)
    asked = [
        Asked(
            arrival=0.01 * number,
            prompt=blocks(Part(number + 1, number + 1, 12)),
            num_output=5,
            principal=evil,
            tenant=evil,
            label=evil,
        )
        for number, evil in enumerate(HOSTILE)
    ]
    return record.picture(name, simulate(asked, [replica], RoundRobin()))


class Outline(HTMLParser):
    """Tags and attributes, and the text of scripts and styles."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.inside: dict[str, list[str]] = {"script": [], "style": []}
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs
        if tag in self.inside:
            self.inside[tag].append("")

    def handle_data(self, data: str) -> None:
        if self.cdata_elem in self.inside:
            self.inside[self.cdata_elem][-1] += data


def test_names_do_not_become_markup() -> None:
    page = to_html([hostile_run()])
    outline = Outline(page)
    frame = "html head meta meta meta meta title style body noscript main script script"
    assert outline.tags == frame.split()
    assert not [name for name, _ in outline.attributes if name.startswith("on") or name in ("src", "href")]
    data, acts = outline.inside["script"]
    assert not re.search("[<>&\u2028\u2029]", data)
    run = json.loads(data)["runs"][0]
    assert run["name"] == HOSTILE[0]
    assert [group["name"] for group in run["groups"]] == [f"{evil}/{evil}" for evil in SHOWN]
    assert sorted(run["engines"][0]["answers"]["label"]) == sorted(SHOWN)
    assert "alert" not in acts


def test_the_program_never_makes_markup_of_text() -> None:
    text = program("chairlift.report", "page.js")
    for means in (
        "innerHTML",
        "outerHTML",
        "insertAdjacentHTML",
        "document.write",
        "eval(",
        "Function(",
        "setTimeout(",
    ):
        assert means not in text
    for means in ("fetch(", "XMLHttpRequest", "WebSocket", "import(", "http:", "https:", "//www"):
        assert means not in text


def test_the_policy_allows_our_program_and_style_and_nothing_else() -> None:
    outline = Outline(to_html([hostile_run()]))
    policy = next(value for name, value in outline.attributes if name == "content" and value and "default-src" in value)
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    assert rules["default-src"] == rules["base-uri"] == rules["form-action"] == "'none'"
    assert rules["script-src"] == digest(outline.inside["script"][1])
    assert rules["style-src"] == digest(outline.inside["style"][0])
    assert len(rules) == 5


def digest(content: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}'"


def test_a_page_gives_its_runs_back() -> None:
    runs = [hostile_run(), hostile_run("other")]
    assert from_html(to_html(runs)) == runs


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (lambda page: "<html></html>", "no data"),
        (lambda page: page.replace('"format":1', '"format":2'), "another format"),
        (lambda page: page.replace('"duration_s":', '"duration_s":"', 1), "damaged"),
        (lambda page: page.replace('"requests":7', '"requests":"7"', 1), "damaged"),
        (lambda page: page[: page.index('"engines"')], "damaged|no data"),
    ],
)
def test_what_is_no_page_of_ours_is_refused(change: object, complaint: str) -> None:
    assert callable(change)
    with pytest.raises(ValueError, match=complaint):
        from_html(change(to_html([hostile_run()])))


@pytest.mark.skipif(shutil.which("node") is None, reason="nothing here reads JavaScript")
def test_the_program_is_a_program(tmp_path: Path) -> None:
    """With a document of nothing, it comes as far as asking for its data."""
    path = tmp_path / "page.cjs"
    path.write_text(program("chairlift.report", "page.js"), encoding="utf-8")
    done = subprocess.run(["node", "--check", str(path)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.skipif(CHROMIUM is None, reason="no browser here")
def test_a_browser_draws_the_page_and_shows_its_figures(tmp_path: Path) -> None:
    runs = [hostile_run(), hostile_run("other")]
    page = tmp_path / "page.html"
    page.write_text(to_html(runs), encoding="utf-8")
    with browser(tmp_path / "profile") as tab:
        tab.open(page.as_uri())
        tab.until("document.documentElement.dataset.drawn")
        shown_page = str(tab.run("document.documentElement.outerHTML"))
        assert not tab.complaints
    outline = Outline(shown_page)
    assert ("data-drawn", "yes") in outline.attributes
    assert outline.tags.count("script") == 2
    assert not {"img", "b", "iframe"} & set(outline.tags)
    assert outline.tags.count("canvas") > 12
    shown = re.findall("<td[^>]*>([^<]*)</td>", shown_page)
    ttft = runs[0].latencies["ttft"]
    assert f"{1e3 * ttft.p50:.3g} ms" in shown
    assert f"{1e3 * ttft.p99:.3g} ms" in shown
    assert shown.count("1.00 ×") > 10
    assert "&lt;/script&gt;&lt;script&gt;alert(1)&lt;/script&gt;" in shown_page

"""The page: what it may do, and in a browser what it shows, of whom, and that nothing in it becomes more than text."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from browser import CHROMIUM, Tab, browser
from chairlift.server.ui.page import HEADERS, PROGRAM, to_html
from server.fake_worker import END, FakeOptions
from server.running import RunningServer, running_server, until
from server.ui.test_watching import asking

needs_browser = pytest.mark.skipif(CHROMIUM is None, reason="no browser here")

EVIL = "</script><script>alert(1)</script><img src=x onerror=alert(1)>"
NAMES = (EVIL, "\u202eelbisivni", "شركة النقل الجبلي", "w" * 128)
ANSWER = f"Yes. {EVIL} <b>bold</b>\n  indented"
"""What the model says."""


def test_it_may_ask_this_server_and_do_nothing_else() -> None:
    headers = {name.decode(): value.decode() for name, value in HEADERS}
    rules = dict(rule.strip().split(" ", 1) for rule in headers["content-security-policy"].split(";"))
    assert rules.pop("connect-src") == "'self'"
    assert re.fullmatch(r"'sha256-[\w+/]{43}='", rules.pop("script-src"))
    assert re.fullmatch(r"'sha256-[\w+/]{43}='", rules.pop("style-src"))
    assert rules.pop("require-trusted-types-for") == "'script'"
    assert rules == dict.fromkeys(("default-src", "base-uri", "form-action", "frame-ancestors"), "'none'")
    assert headers["referrer-policy"] == "no-referrer"
    assert headers["x-content-type-options"] == "nosniff"


def test_its_program_makes_no_markup_and_asks_nobody_else() -> None:
    for means in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "Function(", "srcdoc"):
        assert means not in PROGRAM
    for means in ("XMLHttpRequest", "WebSocket", "EventSource", "import(", "http:", "https:", "//www", "Storage"):
        assert means not in PROGRAM
    assert set(re.findall(r"fetch\((.{12})", PROGRAM)) == {'"ui/live", {', "`ui/requests", '"v1/chat/com'}
    page = to_html().decode()
    assert not re.search(
        r"\s(on\w+|src|style)\s*=", page[: page.index("<style>")] + page[page.index("</style>") :].split("<script>")[0]
    )


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    options = FakeOptions(step_s=0.002, max_num_seqs=4, heartbeat_s=0.02)
    with running_server(options, log_requests=False) as running:
        yield running


@pytest.fixture(scope="module")
def tab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tab]:
    with browser(tmp_path_factory.mktemp("profile")) as tab:
        yield tab


def opened(tab: Tab, server: RunningServer, width: int = 1280, height: int = 900) -> None:
    tab.complaints.clear()
    tab.urls.clear()
    tab.open(f"{server.url}/ui", width=width, height=height)
    tab.until("document.documentElement.dataset.drawn")


def check_harmless(tab: Tab, server: RunningServer) -> None:
    """Nothing was complained of, nothing else was asked, and nobody's name became an element."""
    assert tab.complaints == []
    assert all(url.startswith(f"{server.url}/") for url in tab.urls), tab.urls
    assert tab.run("document.querySelectorAll('img, script ~ script, b').length") == 0
    assert tab.run("document.documentElement.scrollWidth <= document.documentElement.clientWidth")


@needs_browser
def test_it_shows_who_runs_who_waits_and_what_became_of_whom(tab: Tab, server: RunningServer) -> None:
    for name in NAMES:
        server.complete(request_id="done", max_tokens=30, ignore_eos=True, user=name)
    names = [f"live{number}" for number in range(6)]
    with asking(server, *names):
        opened(tab, server)
        tab.until("document.querySelectorAll('.slot[data-phase=decode]').length === 4")
        tab.until("document.querySelectorAll('.slot[data-phase=waiting]').length === 2")
        assert {f"of-live{number}" for number in range(6)} <= set(tab.text("#live").split("\n"))
        before = tab.run("document.querySelector('.slot .who span').textContent")
        tab.until(f"document.querySelector('.slot .who span').textContent !== {before!r}")
        tab.click(".slot[data-phase=decode]")
        tab.until("document.querySelector('#story').dataset.ready")
        assert re.search(r"In slot \d for .*tokens generated\.", tab.text("#story"))
        tab.run("document.querySelector('#story').close()")
        assert "serving" in tab.text("header")
        assert re.search(r"Running\s+4\s+of 4", tab.text("#live"))
    tab.until("document.querySelectorAll('.slot').length === 0")
    tab.click("tr[tabindex]")
    tab.until("document.querySelector('#story').dataset.ready")
    assert re.search(r"given up after|ended by", tab.text("#story"))
    tab.run("document.querySelector('#story').close()")
    shown = tab.text("#live")
    assert all(name in shown for name in NAMES)
    check_harmless(tab, server)


@needs_browser
def test_requests_of_one_id_are_shown_apart(tab: Tab, server: RunningServer) -> None:
    """Clients choose ids, and two may choose the same."""
    with asking(server, "same", "same", "same"):
        opened(tab, server)
        tab.until("document.querySelectorAll('.slot').length === 3")
    check_harmless(tab, server)


@needs_browser
def test_it_chats_and_says_why_it_took_so_long(tab: Tab, server: RunningServer) -> None:
    server.worker.says = lambda request, choice: ANSWER
    try:
        opened(tab, server, width=390, height=844)
        tab.click("#tabs [data-part=talk]")
        tab.type("textarea[name=message]", f"{EVIL} <b>hello</b>")
        tab.click("form.ask button[type=submit]")
        tab.until("document.querySelector('.turn.assistant[data-ended]')")
    finally:
        server.worker.says = lambda request, choice: None
    assert tab.text(".turn.user .text") == f"{EVIL} <b>hello</b>"
    assert tab.text(".turn.assistant .text") == ANSWER
    about = tab.text(".turn.assistant")
    assert re.search(rf"{len(ANSWER) + 1} tokens, \d+ tokens/s, first after ", about)
    assert re.search(r"prompt tokens.*ended by itself\.", about)
    check_harmless(tab, server)
    tab.type("textarea[name=message]", "Again")
    tab.click("form.ask button[type=submit]")
    tab.until("document.querySelectorAll('.turn.assistant[data-ended]').length === 2")
    asked = bytes(token for token in server.worker.adds[-1].prompt if token < END).decode()
    assert ANSWER in asked
    assert asked.index(ANSWER) < asked.index("Again")


@needs_browser
def test_an_answer_can_be_stopped(tab: Tab, server: RunningServer) -> None:
    opened(tab, server)
    tab.run("document.querySelector('input[name=max_tokens]').value = 4000")
    server.worker.says = lambda request, choice: "word " * 700
    try:
        tab.type("textarea[name=message]", "Go on for ever")
        tab.click("form.ask button[type=submit]")
        tab.until("document.querySelector('.turn.assistant .text').textContent.length > 20")
        assert tab.text("form.ask button") == "Stop"
        tab.click("form.ask button")
        tab.until("document.querySelector('.turn.assistant[data-ended]')")
        until(lambda: not server.worker.running)
    finally:
        server.worker.says = lambda request, choice: None
    assert "stopped" in tab.text(".turn.assistant .about")
    assert tab.text("form.ask button") == "Send"
    check_harmless(tab, server)


@needs_browser
def test_a_server_with_keys_asks_for_one(tab: Tab) -> None:
    with running_server(
        api_keys=("key-of-alice",), admin_api_keys=("owner-key",), ui=True, log_requests=False
    ) as keyed:
        tab.open(f"{keyed.url}/ui")
        tab.until("document.querySelector('#keys').open")
        assert "asks for a key" in tab.text("#keys")
        for key, is_known in (("wrong", False), ("owner-key", True)):
            tab.run("document.querySelector('#keys input').value = ''")
            tab.type("#keys input", key)
            tab.click("#keys button[type=submit]")
            tab.until("document.documentElement.dataset.drawn" if is_known else "document.querySelector('#keys').open")
        assert "Nobody is being served." in tab.text("#live")
        assert tab.text("#live").count("None that is remembered.") == 2  # nobody claims that nobody ever asked
        tab.type("textarea[name=message]", "hello")
        tab.click("form.ask button[type=submit]")
        tab.until("document.querySelector('#keys').open")
        assert "chat needs an API key" in tab.text("#keys")
        tab.type("#keys input[name=chat-key]", "key-of-alice")
        tab.click("#keys button[type=submit]")
        tab.type("textarea[name=message]", "hello again")
        tab.click("form.ask button[type=submit]")
        tab.until("document.querySelectorAll('.turn.assistant .why').length === 1")
        assert not [url for url in tab.urls if "key" in url]


@needs_browser
def test_a_server_that_is_gone_is_said_to_be_and_looked_for_again(tab: Tab, server: RunningServer) -> None:
    opened(tab, server)
    tab.call("Network.emulateNetworkConditions", offline=True, latency=0, downloadThroughput=-1, uploadThroughput=-1)
    tab.until("!document.querySelector('#notice').hidden")
    assert "does not answer. What is shown is from" in tab.text("#notice")
    tab.call("Network.emulateNetworkConditions", offline=False, latency=0, downloadThroughput=-1, uploadThroughput=-1)
    tab.until("document.querySelector('#notice').hidden")
    assert "serving" in tab.text("#state")

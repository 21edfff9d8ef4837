"""One self-contained page: the picture's data, and a program and a style that are part of this package.

The page may make no connections, and runs no program but ours: its policy names ours by its digest. The data is JSON
in which no character can end the element that holds it, whatever requests, tenants or models are called.
"""

from __future__ import annotations

import re

import msgspec

from chairlift.pages.build import policy, program, style
from chairlift.report.data import FORMAT, Page, Run

_ESCAPES = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029"}
_UNSAFE = re.compile("[<>&\u2028\u2029]")
_OPEN = '<script type="application/json" id="data">'
_CLOSE = "</script>"

_PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>Chairlift report</title>
<style>{style}</style>
</head>
<body>
<noscript>The pictures are drawn by a program in this page; scripts are turned off.</noscript>
<main id="report"></main>
{open}{data}{close}
<script>{program}</script>
</body>
</html>
"""


def to_html(runs: list[Run]) -> str:
    """The page of one run, or of two side by side."""
    look, acts = style("chairlift.report", "page.css"), program("chairlift.report", "page.js")
    rules = policy(acts, look)
    return _PAGE.format(policy=rules, style=look, program=acts, data=to_json(runs), open=_OPEN, close=_CLOSE)


def to_json(runs: list[Run]) -> str:
    """The data, fit to stand between tags."""
    text = msgspec.json.encode(Page(FORMAT, runs)).decode()
    return _UNSAFE.sub(lambda match: _ESCAPES[match[0]], text)


def from_html(text: str) -> list[Run]:
    """The runs that a page shows.

    Raises:
        ValueError: not a page of ours, or one of another version.
    """
    begin = text.find(_OPEN)
    end = text.find(_CLOSE, begin)
    if begin < 0 or end < 0:
        raise ValueError("it holds no data of a report")
    data = text[begin + len(_OPEN) : end].encode()
    try:
        version = msgspec.json.decode(data, type=dict[str, msgspec.Raw]).get("format")
        if version is None or bytes(version) != str(FORMAT).encode():
            raise ValueError(f"its data is of another format; this version reads format {FORMAT}")
        return msgspec.json.decode(data, type=Page).runs
    except msgspec.MsgspecError as error:
        raise ValueError(f"its data is damaged: {error}") from error

"""The series as documented, as Prometheus would judge them, and as the dashboard and the rules use them."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families

from chairlift.metrics.batches import BatchMetrics
from chairlift.metrics.serving import ServingMetrics
from chairlift.metrics.several import render_all

ROOT = Path(__file__).resolve().parents[2]
COMMON = {"model_name", "engine"}
PARTS = ("_bucket", "_sum", "_count")
NAMED = re.compile(r"\b(?:vllm|chairlift):[a-z0-9_]+")
LABEL = re.compile(r"\b([a-z_]+)\s*(?:=~|!~|!=|=)\s*\"")
GROUPED = re.compile(r"\b(?:by|without)\s*\(([^)]*)\)")

Series = dict[str, tuple[str, frozenset[str]]]
"""Kind and further labels by name."""


@pytest.fixture(scope="module")
def families() -> list[Metric]:
    """What is rendered of a server with two engines that keeps batches."""
    engines = [ServingMetrics("m", max_model_len=4096, num_blocks=8, block_size=16, engine=name) for name in "01"]
    engines[0].on_response("/v1/models", 200)
    batches = BatchMetrics(engines[0].labels, lambda: [("in_progress", 3)])
    return list(text_string_to_metric_families(render_all([*engines, batches]).decode()))


@pytest.fixture(scope="module")
def rendered(families: list[Metric]) -> Series:
    return {
        family.name + ("_total" if family.type == "counter" else ""): (
            family.type,
            frozenset(label for sample in family.samples for label in sample.labels) - COMMON - {"le"},
        )
        for family in families
    }


def documented() -> Iterator[tuple[str, tuple[str, frozenset[str]]]]:
    """The rows of the table in docs/serving.md."""
    page = (ROOT / "docs" / "serving.md").read_text(encoding="utf-8")
    table = page.split("| kind | labels | series |")[1].split("\n\n")[0]
    for line in table.splitlines()[2:]:
        kind, labels, series = (cell.strip() for cell in line.strip("|").split(" |", 2))
        for name in NAMED.findall(series):
            yield name, (kind, frozenset(re.findall(r"`([a-z_]+)`", labels)))


def test_every_series_is_documented_and_every_documented_one_is_there(rendered: Series) -> None:
    rows = list(documented())
    assert [name for name, count in Counter(name for name, _ in rows).items() if count > 1] == []
    assert dict(rows) == rendered


def test_what_is_said_not_to_be_here_is_not(rendered: Series) -> None:
    page = (ROOT / "docs" / "serving.md").read_text(encoding="utf-8")
    table = page.split("| what vLLM has besides |")[1].split("\n\n")[0]
    absent = re.findall(
        r"`((?:vllm:|http_)[a-z0-9_]+)\*?`", "\n".join(line.split(" | ")[0] for line in table.splitlines())
    )
    assert len(absent) > 15
    for name in absent:
        assert not [one for one in rendered if one.startswith(name)], name


# ---------------------------------------------------------------- as `promtool check metrics` looks at them


def test_each_has_a_text_a_kind_and_a_name_that_says_its_unit(families: list[Metric]) -> None:
    for family in families:
        assert family.documentation.endswith("."), family.name
        assert family.type in ("counter", "gauge", "histogram"), family.name
        assert re.fullmatch(r"(vllm|chairlift):[a-z][a-z0-9_]*", family.name)
        assert not re.search(r"_(ms|milliseconds|minutes|kb|mb|percent)(_|$)", family.name)
        if re.search(r"time|latency|duration", family.name) and family.name != "vllm:iteration_tokens_total":
            assert "_seconds" in family.name, family.name


def test_each_has_one_heading_and_no_sample_twice() -> None:
    engines = [ServingMetrics("m", max_model_len=4096, num_blocks=8, block_size=16, engine=name) for name in "01"]
    text = render_all(engines, with_process=True).decode()
    for kind in ("HELP", "TYPE"):
        names = re.findall(rf"^# {kind} (\S+)", text, re.MULTILINE)
        assert len(names) == len(set(names))
    lines = [line.rpartition(" ")[0] for line in text.splitlines() if not line.startswith("#")]
    assert len(lines) == len(set(lines))
    assert "process_start_time_seconds" in text


def test_histograms_add_up(families: list[Metric]) -> None:
    for family in families:
        if family.type != "histogram":
            continue
        for engine in "01":
            mine = [sample for sample in family.samples if sample.labels["engine"] == engine]
            edges = [float(sample.labels["le"]) for sample in mine if sample.name.endswith("_bucket")]
            assert edges == sorted(set(edges)) and edges[-1] == math.inf, family.name
            assert {sample.name.removeprefix(family.name) for sample in mine} == set(PARTS)


# ---------------------------------------------------------------- the dashboard and the rules


def dashboard() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((ROOT / "deploy" / "grafana.json").read_text(encoding="utf-8"))
    return found


def rules() -> list[dict[str, Any]]:
    (group,) = yaml.safe_load((ROOT / "deploy" / "alerts.yml").read_text(encoding="utf-8"))["groups"]
    found: list[dict[str, Any]] = group["rules"]
    return found


def expressions() -> Iterator[str]:
    for panel in dashboard()["panels"]:
        yield from (target["expr"] for target in panel.get("targets", ()))
    yield from (rule["expr"] for rule in rules())
    yield from (one["query"]["query"] for one in dashboard()["templating"]["list"] if one["type"] == "query")


def samples_of(rendered: Series) -> Series:
    """By the names that samples have."""
    found: Series = {}
    for name, (kind, labels) in rendered.items():
        if kind == "histogram":
            found |= {name + part: (kind, labels | ({"le"} if part == "_bucket" else set())) for part in PARTS}
        else:
            found[name] = kind, labels
    return found


@pytest.mark.parametrize("expression", sorted(set(expressions())))
def test_every_series_and_label_that_is_asked_for_is_rendered(expression: str, rendered: Series) -> None:
    known = samples_of(rendered)
    names = NAMED.findall(expression)
    assert names and set(names) <= set(known), set(names) - set(known)
    labels = COMMON.union(*(known[name][1] for name in names))
    asked = {
        *LABEL.findall(expression),
        *(one.strip() for group in GROUPED.findall(expression) for one in group.split(",")),
    }
    assert asked <= labels, asked - labels
    for name in names:
        is_counted = known[name][0] != "gauge"
        assert is_counted == bool(re.search(rf"(rate|increase)\({re.escape(name)}\b", expression)), name
    assert all(expression.count(opening) == expression.count(closing) for opening, closing in ("()", "[]", "{}"))


def test_the_dashboard_is_one_that_grafana_takes() -> None:
    board = dashboard()
    assert {"title", "uid", "schemaVersion", "panels", "templating", "time"} <= set(board)
    panels = board["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken and place["x"] + place["w"] <= 24, panel["title"]
        taken |= cells
        if panel["type"] != "row":
            assert panel["type"] in ("timeseries", "stat", "gauge")
            assert panel["title"] and panel["description"] and panel["targets"]
            assert all("$model_name" in target["expr"] for target in panel["targets"])


def test_every_rule_says_what_is_wrong() -> None:
    names = [rule["alert"] for rule in rules()]
    assert len(names) == len(set(names)) > 5
    for rule in rules():
        assert set(rule) <= {"alert", "expr", "for", "labels", "annotations"}
        assert rule["labels"]["severity"] in ("page", "ticket")
        assert rule["annotations"]["summary"].endswith(".")
        assert re.fullmatch(r"\d+[smh]", rule.get("for", "0s"))

"""The Grafana dashboard asks only for metrics that are on the page of metrics, by labels that they
have.
"""

from __future__ import annotations

import json
import re
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

REFERENCE = Path(__file__).resolve().parent.parent / "docs/reference"
DASHBOARD: dict[str, Any] = json.loads((REFERENCE / "grafana-dashboard.json").read_text())
PANELS: list[dict[str, Any]] = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
QUERIES = [target["expr"] for panel in PANELS for target in panel["targets"]]


def metrics_of_the_page() -> dict[str, set[str]]:
    """The labels of each name that Prometheus gets, as the page lists them."""
    found: dict[str, set[str]] = {}
    for line in (REFERENCE / "metrics.md").read_text().splitlines():
        if line.startswith("| `deltaq_"):
            name, kind, _, labels, *_ = (cell.strip() for cell in line.strip("| ").split(" | "))
            endings = ("_bucket", "_sum", "_count") if kind == "histogram" else ("",)
            for ending in endings:
                le = {"le"} if ending == "_bucket" else set()
                found[name.strip("`") + ending] = {*re.findall("`([^`]+)`", labels)} | le
    return found


@pytest.mark.parametrize("query", QUERIES)
def test_a_query_names_metrics_and_labels_of_the_page(query: str) -> None:
    known = metrics_of_the_page()
    used = set(re.findall(r"deltaq_[a-z_]+", query))
    assert used
    assert used <= known.keys()
    grouped = {
        label.strip()
        for found in re.findall(r"by \(([^)]*)\)", query)
        for label in found.split(",")
    }
    selected = set(re.findall(r"(\w+)=~", query))
    assert all(grouped | selected <= known[name] for name in used)
    assert query.count("(") == query.count(")")


def test_a_counter_is_asked_for_its_rate_and_a_gauge_is_not() -> None:
    for query in QUERIES:
        for name, before in re.findall(r"((?:rate\()?)(deltaq_[a-z_]+)", query):
            assert bool(name) == before.endswith(("_total", "_bucket", "_count")), query


def test_every_counter_of_faults_is_on_the_dashboard() -> None:
    shown = " ".join(QUERIES)
    faults = [
        name
        for name in metrics_of_the_page()
        if re.search("error|unknown|expired|missing|lost|failed|refused|fenced|by_others", name)
    ]
    assert len(faults) >= 9
    assert [name for name in faults if name not in shown] == []


def test_panels_have_titles_units_and_places_of_their_own() -> None:
    assert len({panel["title"] for panel in PANELS}) == len(PANELS)
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])
    assert all(panel["fieldConfig"]["defaults"]["unit"] for panel in PANELS)
    places = [panel["gridPos"] for panel in DASHBOARD["panels"]]
    assert all(place["x"] + place["w"] <= 24 for place in places)
    for one, other in combinations(places, 2):
        beside = one["x"] + one["w"] <= other["x"] or other["x"] + other["w"] <= one["x"]
        below = one["y"] + one["h"] <= other["y"] or other["y"] + other["h"] <= one["y"]
        assert beside or below


def test_every_metric_of_share_groups_is_on_the_dashboard() -> None:
    queues = [name for name in metrics_of_the_page() if name.startswith("deltaq_share_")]
    assert len(queues) >= 5
    assert [name for name in queues if name not in " ".join(QUERIES)] == []

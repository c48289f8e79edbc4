"""The committed dashboards: made by the generator, valid for Grafana's types, and complete."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.models.dashboard import Dashboard

from deploy.monitoring.dashboards.generate import DASHBOARDS, FOLDER, render
from tests.support.dashboards import load, panels, queries

register_default_plugins()

GRID_COLUMNS = 24


@pytest.fixture(params=DASHBOARDS)
def dashboard(request: pytest.FixtureRequest) -> dict[str, Any]:
    return load(request.param)


@pytest.mark.parametrize("name", DASHBOARDS)
def test_the_files_are_what_the_generator_writes(name: str) -> None:
    is_fresh = (FOLDER / f"{name}.json").read_text("utf-8") == render(name)
    assert is_fresh, "run: make dashboards"


def test_there_are_no_other_files() -> None:
    assert {path.stem for path in FOLDER.glob("*.json")} == set(DASHBOARDS)


def test_nothing_is_lost_in_the_types_of_grafana(dashboard: dict[str, Any]) -> None:
    """A key that Grafana's types do not know, or in the wrong place, would be dropped."""
    again = json.loads(json.dumps(Dashboard.from_json(dashboard), cls=JSONEncoder))
    assert list(lost(dashboard, again)) == []


def lost(given: Any, kept: Any, place: str = "") -> Iterator[str]:
    """Yield the places of what is not the same in `kept`, which may have more keys."""
    if isinstance(given, dict) and isinstance(kept, dict):
        for key, value in given.items():
            yield from lost(value, kept.get(key), f"{place}.{key}")
    elif isinstance(given, list) and isinstance(kept, list) and len(given) == len(kept):
        for number, (one, other) in enumerate(zip(given, kept, strict=True)):
            yield from lost(one, other, f"{place}[{number}]")
    elif given != kept:
        yield f"{place}: {given!r} became {kept!r}"


def test_dashboards_have_identities_of_their_own() -> None:
    made = [load(name) for name in DASHBOARDS]
    assert len({each["uid"] for each in made}) == len({each["title"] for each in made}) == len(made)


def test_panels_have_texts_units_and_the_data_source_of_the_variable(dashboard: dict[str, Any]) -> None:
    for panel in panels(dashboard):
        assert panel["title"].strip(), panel
        assert panel["description"].strip(), panel["title"]
        assert panel["fieldConfig"]["defaults"]["unit"], panel["title"]
        for owner in (panel, *panel["targets"]):
            assert owner["datasource"] == {"type": "prometheus", "uid": "${datasource}"}, panel["title"]
    assert all(panel["title"].strip() for panel in dashboard["panels"] if panel["type"] == "row")


def test_ids_are_unique(dashboard: dict[str, Any]) -> None:
    ids = [panel["id"] for panel in dashboard["panels"]]
    assert len(set(ids)) == len(ids)
    for panel in panels(dashboard):
        refs = [target["refId"] for target in panel["targets"]]
        assert len(set(refs)) == len(refs) > 0, panel["title"]
    titles = [panel["title"] for panel in panels(dashboard)]
    assert len(set(titles)) == len(titles)


def test_panels_do_not_overlap_and_fill_their_lines(dashboard: dict[str, Any]) -> None:
    taken: dict[tuple[int, int], str] = {}
    for panel in dashboard["panels"]:
        place = panel["gridPos"]
        for y in range(place["y"], place["y"] + place["h"]):
            for x in range(place["x"], place["x"] + place["w"]):
                assert (x, y) not in taken, f"{panel['title']} is on {taken[x, y]}"
                assert x < GRID_COLUMNS, panel["title"]
                taken[x, y] = panel["title"]
    lines = {y for _, y in taken}
    assert len(taken) == GRID_COLUMNS * len(lines), "a line has a gap"
    assert lines == set(range(len(lines)))


def test_every_query_is_of_the_chosen_servers(dashboard: dict[str, Any]) -> None:
    """Each variable is used in each query, but for the one that names the data source."""
    chosen = [each["name"] for each in dashboard["templating"]["list"] if each["name"] != "datasource"]
    assert dashboard["templating"]["list"][0]["name"] == "datasource"
    for panel in panels(dashboard):
        for target in panel["targets"]:
            assert all(f"${name}" in target["expr"] for name in chosen), target["expr"]


def test_times_to_the_first_token_are_those_of_the_objective() -> None:
    """Prefetches are in the histogram and not in the objective: a panel with them would contradict the alerts."""
    read = [query for query in queries() if "completion_ttft_seconds_bucket" in query.template]
    assert len(read) > 5
    assert [query.place for query in read if 'trigger!="prefetch"' not in query.template] == []


def test_panels_of_latency_over_time_link_to_traces() -> None:
    linked = {
        panel["title"]
        for panel in panels(load("serving"))
        if panel["type"] == "timeseries" and any(target.get("exemplar") for target in panel["targets"])
    }
    assert linked == {"TTFT", *(f"Stages over time, {share}" for share in ("p50", "p95", "p99"))}

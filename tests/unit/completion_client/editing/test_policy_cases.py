"""The table of cases that every implementation of the client's policy passes."""

from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import pytest

from completion_client.editing import EditingSettings, NextEditSettings, RecentEditSettings, SnippetSettings
from tests.support.next_edit_cases import edit_decisions_of, recent_edits_of
from tests.support.policy_cases import TABLE, choices_of, decisions_of

PLAYERS = {
    "cases": decisions_of,
    "snippet_cases": choices_of,
    "next_edit_cases": edit_decisions_of,
    "recent_edit_cases": recent_edits_of,
}
CASES = [(play, case) for name, play in PLAYERS.items() for case in TABLE[name]]
DEFAULTS = {
    "defaults": EditingSettings(),
    "snippet_defaults": SnippetSettings(),
    "next_edit_defaults": NextEditSettings(),
    "recent_edit_defaults": RecentEditSettings(),
}


@pytest.mark.parametrize(("play", "case"), CASES, ids=[case["name"] for _, case in CASES])
def test_decisions_are_those_of_the_table(play: Callable[[Any], list[Any]], case: dict[str, Any]) -> None:
    assert play(case) == [step.get("then") for step in case["steps"]]


def test_table_has_the_default_settings_and_names_each_case_once() -> None:
    assert {name: TABLE[name] for name in DEFAULTS} == {name: asdict(each) for name, each in DEFAULTS.items()}
    names = [case["name"] for _, case in CASES]
    assert len(set(names)) == len(names)

"""The cases of next edits that every implementation of the client's policy passes."""

from dataclasses import asdict
from typing import Any

import pytest

from completion_client.editing import NextEditSettings, RecentEditSettings
from tests.support.next_edit_cases import edit_decisions_of, recent_edits_of
from tests.support.policy_cases import TABLE


@pytest.mark.parametrize("case", TABLE["next_edit_cases"], ids=lambda case: case["name"])
def test_decisions_on_edits_are_those_of_the_table(case: dict[str, Any]) -> None:
    assert edit_decisions_of(case) == [step["then"] for step in case["steps"]]


@pytest.mark.parametrize("case", TABLE["recent_edit_cases"], ids=lambda case: case["name"])
def test_recent_edits_are_those_of_the_table(case: dict[str, Any]) -> None:
    assert recent_edits_of(case) == [step.get("then") for step in case["steps"]]


def test_table_has_the_default_settings_of_edits() -> None:
    assert TABLE["next_edit_defaults"] == asdict(NextEditSettings())
    assert TABLE["recent_edit_defaults"] == asdict(RecentEditSettings())


def test_names_of_cases_of_edits_are_unique() -> None:
    names = [case["name"] for case in (*TABLE["next_edit_cases"], *TABLE["recent_edit_cases"])]
    assert len(set(names)) == len(names)

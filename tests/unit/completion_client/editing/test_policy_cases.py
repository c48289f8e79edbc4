"""The table of cases that every implementation of the client's policy passes."""

from dataclasses import asdict
from typing import Any

import pytest

from completion_client.editing import EditingSettings, SnippetSettings
from tests.support.policy_cases import TABLE, choices_of, decisions_of


@pytest.mark.parametrize("case", TABLE["cases"], ids=lambda case: case["name"])
def test_decisions_are_those_of_the_table(case: dict[str, Any]) -> None:
    assert decisions_of(case) == [step["then"] for step in case["steps"]]


@pytest.mark.parametrize("case", TABLE["snippet_cases"], ids=lambda case: case["name"])
def test_snippets_are_those_of_the_table(case: dict[str, Any]) -> None:
    assert choices_of(case) == [step.get("then") for step in case["steps"]]


def test_table_has_the_default_settings() -> None:
    assert TABLE["defaults"] == asdict(EditingSettings())
    assert TABLE["snippet_defaults"] == asdict(SnippetSettings())


def test_names_of_cases_are_unique() -> None:
    names = [case["name"] for case in (*TABLE["cases"], *TABLE["snippet_cases"])]
    assert len(set(names)) == len(names)

"""The settings of an editor, and which documents they leave out."""

from typing import Any

import pytest

from completion_lsp.settings import CODE, SECRET_WORDS, SECRETS, Settings, section_of, updated
from tests.support.policy_cases import TABLE

UNSURE = "nothing is completed until that is corrected"


def test_settings_are_in_camel_case_and_null_is_the_default() -> None:
    given = {"languagesOff": ["go"], "multiLine": False, "delayMs": 80, "timeoutMs": None, "exclude": ["*.x"]}
    expected = Settings(languages_off=("go",), multi_line=False, delay_ms=80, exclude=("*.x",))
    assert updated(Settings(timeout_ms=1), given) == (expected, [])


@pytest.mark.parametrize(
    ("given", "problem", "is_unsure"),
    [
        ({"delayMS": 1}, 'unknown setting "delayMS"; did you mean "delayMs"?', False),
        ({"zzz": 1}, 'unknown setting "zzz"; there are enabled, languagesOff', False),
        ({"delayMs": -1}, '"delayMs" must be milliseconds, 0 to 60000', False),
        ({"delayMs": True}, '"delayMs" must be milliseconds', False),
        ({"enabled": "no"}, '"enabled" must be true or false', True),
        ({"enable": False}, 'unknown setting "enable"', True),
        ({"exclude": "*.x"}, '"exclude" must be a list of strings', True),
        ({"excludes": ["*.x"]}, 'unknown setting "excludes"', True),
        ({"languageOff": []}, 'unknown setting "languageOff"', True),
    ],
)
def test_a_setting_that_cannot_be_used_is_named_and_nothing_is_completed_if_that_may_be_kept_back(
    given: dict[str, Any], problem: str, is_unsure: bool
) -> None:
    settings, problems = updated(Settings(), {"languagesOff": ["go"]} | given)
    assert problems[0].startswith(problem)
    assert problems[1:] == [UNSURE] * is_unsure
    assert settings.languages_off == ("go",), "the others apply"
    reason = settings.why_not("file:///project/a.py", "python")
    assert reason == ("completions are off" if is_unsure else None)


@pytest.mark.parametrize(
    ("given", "section"),
    [
        ({"completion": {"delayMs": 1}, "other": {}}, {"delayMs": 1}),
        ({"completion": None}, {}),
        ({"completion": False}, {"enabled": False}),
        ({"delayMs": 1}, {"delayMs": 1}),
        (None, {}),
        ([], {}),
        ("off", {"enabled": "off"}),
    ],
)
def test_settings_come_alone_or_as_a_section(given: Any, section: dict[str, Any]) -> None:
    assert section_of(given) == section


def test_the_built_in_patterns_are_those_of_the_table() -> None:
    table = TABLE["excludes"]
    assert (list(SECRETS), list(SECRET_WORDS), CODE) == (table["patterns"], table["words"], set(table["code"]))


@pytest.mark.parametrize("case", TABLE["excludes"]["cases"], ids=lambda case: case["path"])
def test_a_path_of_the_table_is_excluded_or_not(case: dict[str, Any]) -> None:
    folders = ["file:///elsewhere", *(f"file://{case[name]}" for name in ("folder",) if name in case)]
    reason = Settings(exclude=("*.x",)).why_not(f"file://{case['path']}", "python", folders)
    assert (reason or "").startswith("excluded by ") is case["excluded"]


@pytest.mark.parametrize(
    ("uri", "pattern"),
    [
        ("file:///project/environment.py", None),
        ("file:///project/keys/server.PEM", "*.pem, as files with secrets are"),
        ("file:///c%3A/project/id_rsa", "id_rsa*, as files with secrets are"),
        ("notebook-cell:/project/.env#c1", ".env, as files with secrets are"),
        ("file:///project/private/a.py", "private/*"),
        ("file:///project/a.gen.py", "*.gen.py"),
        ("file:///home/acme/w/a.py", "Acme"),
        ("untitled:Untitled-1", None),
    ],
)
def test_files_with_secrets_and_excluded_ones_are_left_out(uri: str, pattern: str | None) -> None:
    """Patterns of the user see the whole path."""
    settings = Settings(exclude=("private/*", "*.gen.py", "Acme"))
    reason = settings.why_not(uri, "python", ["file:///home/acme/w"])
    assert reason == (pattern and f"excluded by {pattern}")


def test_a_language_can_be_off() -> None:
    assert Settings(languages_off=("markdown",)).why_not("file:///a.md", "markdown") == "off for markdown"

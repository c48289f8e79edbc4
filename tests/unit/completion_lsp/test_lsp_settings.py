"""The settings of an editor, and which documents they leave out."""

from typing import Any

import pytest

from completion_lsp.settings import CODE, SECRET_WORDS, SECRETS, Settings, section_of, updated
from tests.support.policy_cases import TABLE


def test_settings_are_in_camel_case_and_null_is_the_default() -> None:
    given = {"languagesOff": ["go"], "multiLine": False, "delayMs": 80, "timeoutMs": None, "exclude": ["*.x"]}
    expected = Settings(languages_off=("go",), multi_line=False, delay_ms=80, exclude=("*.x",))
    assert updated(Settings(timeout_ms=1), given) == (expected, [])


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"delayMS": 1}, 'unknown setting "delayMS"; did you mean "delayMs"?'),
        ({"zzz": 1}, 'unknown setting "zzz"; there are enabled, languagesOff'),
        ({"enabled": "no"}, '"enabled" must be true or false'),
        ({"delayMs": -1}, '"delayMs" must be milliseconds, 0 to 60000'),
        ({"delayMs": True}, '"delayMs" must be milliseconds'),
        ({"exclude": "*.x"}, '"exclude" must be a list of strings'),
    ],
)
def test_a_setting_that_cannot_be_used_is_named_and_the_others_apply(given: dict[str, Any], problem: str) -> None:
    settings, problems = updated(Settings(), {"languagesOff": ["go"]} | given)
    assert problems[0].startswith(problem)
    assert settings.languages_off == ("go",)


@pytest.mark.parametrize(
    "given",
    [
        {"exclude": "*.x"},
        {"excludes": ["*.x"]},
        {"enabled": 0},
        {"enable": False},
        {"languagesOff": "go"},
        {"languageOff": []},
    ],
)
def test_nothing_is_completed_while_it_is_not_known_what_may_be(given: dict[str, Any]) -> None:
    settings, problems = updated(Settings(), {"enabled": True} | given)
    assert settings.why_not("file:///project/a.py", "python") == "completions are off"
    assert problems[1:] == ["nothing is completed until that is corrected"]


@pytest.mark.parametrize(
    ("given", "section"),
    [
        ({"completion": {"delayMs": 1}, "other": {}}, {"delayMs": 1}),
        ({"completion": {}}, {}),
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
    assert list(SECRETS) == table["patterns"]
    assert list(SECRET_WORDS) == table["words"]
    assert set(table["code"]) == CODE


@pytest.mark.parametrize("case", TABLE["excludes"]["cases"], ids=lambda case: case["path"])
def test_a_path_of_the_table_is_excluded_or_not(case: dict[str, Any]) -> None:
    folders = ["file:///elsewhere", *(f"file://{case[name]}" for name in ("folder",) if name in case)]
    reason = Settings(exclude=("*.x",)).why_not(f"file://{case['path']}", "python", folders)
    assert (reason or "").startswith("excluded by ") is case["excluded"]


@pytest.mark.parametrize(
    ("uri", "is_allowed"),
    [
        ("file:///project/app.py", True),
        ("file:///project/.env", False),
        ("file:///project/.env.local", False),
        ("file:///project/keys/server.PEM", False),
        ("file:///home/ada/.ssh/config", False),
        ("file:///c%3A/project/id_rsa", False),
        ("file:///project/environment.py", True),
        ("file:///project/secrets.yaml", False),
        ("file:///project/private/a.py", False),
        ("file:///project/a.gen.py", False),
        ("untitled:Untitled-1", True),
        ("notebook-cell:/project/.env#c1", False),
    ],
)
def test_files_with_secrets_and_excluded_ones_are_left_out(uri: str, is_allowed: bool) -> None:
    settings = Settings(exclude=("private/*", "*.gen.py"))
    assert (settings.why_not(uri, "python") is None) is is_allowed


def test_patterns_of_the_user_see_the_whole_path() -> None:
    settings = Settings(exclude=("Private", "acme/*"))
    folders = ("file:///home/private/w", "file:///home/acme/w")
    assert settings.why_not("file:///home/private/w/a.py", "python", folders) == "excluded by Private"
    assert settings.why_not("file:///home/acme/w/a.py", "python", folders) == "excluded by acme/*"
    assert settings.why_not("file:///home/a/w/a.py", "python", folders) is None


def test_a_language_and_all_of_them_can_be_off() -> None:
    assert Settings(languages_off=("markdown",)).why_not("file:///a.md", "markdown") == "off for markdown"
    assert Settings(enabled=False).why_not("file:///a.py", "python") == "completions are off"

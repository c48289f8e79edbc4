"""Plays the cases of next and recent edits in editors/policy_cases.json."""

from collections.abc import Mapping, Sequence
from typing import Any

from completion_client.editing import (
    AskEdit,
    Cancel,
    Change,
    EditDecision,
    Hide,
    LineEdit,
    NextEditPolicy,
    NextEditSettings,
    RecentEdits,
    RecentEditSettings,
    Report,
    ShowEdit,
    Text,
    Wait,
)
from tests.support.policy_cases import TABLE, Step

_CHANGES = {each.value: each for each in Change}


def edit_decisions_of(case: Mapping[str, Any]) -> list[list[dict[str, Any]]]:
    """Return the decisions of this implementation after each step of a case, in the words of the table."""
    policy = NextEditPolicy(NextEditSettings(**{**TABLE["next_edit_settings"], **case.get("settings", {})}))
    return [[_in_words(decision) for decision in _play(policy, step)] for step in case["steps"]]


def recent_edits_of(case: Mapping[str, Any]) -> list[list[list[str]] | None]:
    """Return the chosen edits after each step of a case of recent edits; None after other steps."""
    edits = RecentEdits(RecentEditSettings(**{**TABLE["recent_edit_settings"], **case.get("settings", {})}))
    return [_play_recent(edits, step) for step in case["steps"]]


def _play(policy: NextEditPolicy, step: Step) -> Sequence[EditDecision]:
    at_ms = step["at"]
    match step:
        case {"ended": request}:
            version, *lines = step.get("edit", [None])
            edit = LineEdit(*lines) if lines else None
            return policy.ended(request, step["reason"], at_ms, edit, version, step.get("retry_after_ms"))
        case {"accepted": _}:
            return policy.accepted(step.get("request"), _text(step, "accepted"), step["version"], at_ms)
        case {"busy": is_busy}:
            return policy.busy(is_busy, at_ms)
        case {"shown": request}:
            return policy.shown(request, at_ms)
    [event] = step.keys() - {"at", "then", "uri", "version"}
    if event in _CHANGES:
        return policy.changed(_text(step, event), step["version"], _CHANGES[event], at_ms)
    arguments = [_text(step, event), step["version"]] if event in {"moved", "wanted"} else []
    decisions: Sequence[EditDecision] = getattr(policy, event)(*arguments, at_ms)
    return decisions


def _play_recent(edits: RecentEdits, step: Step) -> list[list[str]] | None:
    match step:
        case {"update": text}:
            edits.update(step.get("uri", "a.py"), text, step["at"])
        case {"forget": uri}:
            edits.forget(uri)
        case {"choose": _}:
            return [[each.uri, each.diff] for each in edits.choose()]
    return None


def _text(step: Step, event: str) -> Text:
    before, after = step[event].split("|")
    return Text(step.get("uri", "a.py"), before, after)


def _in_words(decision: EditDecision) -> dict[str, Any]:
    match decision:
        case AskEdit(request):
            return {"ask": request}
        case ShowEdit(request, version, edit):
            return {"show": edit.text, "request": request, "version": version, "lines": [edit.first, edit.num_lines]}
        case Wait(until_ms):
            return {"wait_until": until_ms}
        case Cancel(request):
            return {"cancel": request}
        case Hide():
            return {"hide": True}
        case Report(request, kind, characters):
            return {"report": kind, "request": request} | ({"characters": characters} if characters else {})

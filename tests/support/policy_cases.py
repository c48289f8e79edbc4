"""Plays the cases of editors/policy_cases.json, the table that every implementation of the client's policy passes."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from completion_client.editing import (
    Ask,
    Cancel,
    Change,
    Decision,
    EditingPolicy,
    EditingSettings,
    Extent,
    Hide,
    Report,
    Show,
    SnippetRing,
    SnippetSettings,
    Text,
    Wait,
)

Step = Mapping[str, Any]
TABLE: Mapping[str, Any] = json.loads((Path(__file__).parents[2] / "editors/policy_cases.json").read_text("utf-8"))
_CHANGES = {each.value: each for each in Change}
_EXTENTS = {each.name.lower(): each for each in Extent}


def decisions_of(case: Mapping[str, Any]) -> list[list[dict[str, Any]]]:
    """Return the decisions of this implementation after each step of a case, in the words of the table."""
    policy = EditingPolicy(EditingSettings(**{**TABLE["settings"], **case.get("settings", {})}))
    return [[_in_words(decision) for decision in _play(policy, step)] for step in case["steps"]]


def choices_of(case: Mapping[str, Any]) -> list[list[str] | None]:
    """Return the documents of the chosen snippets after each step of a case of snippets; None after other steps."""
    ring = SnippetRing(SnippetSettings(**{**TABLE["snippet_settings"], **case.get("settings", {})}))
    return [_play_snippets(ring, step) for step in case["steps"]]


def _play(policy: EditingPolicy, step: Step) -> Sequence[Decision]:
    at_ms = step["at"]
    match step:
        case {"accepted": _}:
            text = _text(step, "accepted")
            return policy.accepted(step["request"], text, _EXTENTS[step["extent"]], step["inserted"], at_ms)
        case {"received": request}:
            return policy.received(request, step["text"], at_ms)
        case {"ended": request}:
            return policy.ended(request, step["reason"], at_ms, step.get("text", ""), step.get("retry_after_ms"))
    [event] = step.keys() - {"at", "then", "uri"}
    if event in _CHANGES:
        return policy.changed(_text(step, event), _CHANGES[event], at_ms)
    arguments = [_text(step, event)] if event in {"moved", "explicit"} else [step[event]] if event == "shown" else []
    return getattr(policy, event)(*arguments, at_ms)


def _play_snippets(ring: SnippetRing, step: Step) -> list[str] | None:
    match step:
        case {"leave": _}:
            ring.leave(_text(step, "leave"))
        case {"close": uri}:
            ring.close(uri)
        case {"choose": _}:
            return [each.uri for each in ring.choose(_text(step, "choose"))]
    return None


def _text(step: Step, event: str) -> Text:
    before, after = step[event].split("|")
    return Text(step.get("uri", "a.py"), before, after)


def _in_words(decision: Decision) -> dict[str, Any]:
    match decision:
        case Ask(request, trigger, mode):
            return {"ask": request, "trigger": trigger.value, "mode": mode.value}
        case Wait(until_ms):
            return {"wait_until": until_ms}
        case Cancel(request):
            return {"cancel": request}
        case Show(request, text, replaced):
            return {"show": text, "request": request} | ({"replaced": replaced} if replaced else {})
        case Hide():
            return {"hide": True}
        case Report(request, kind, characters):
            return {"report": kind, "request": request} | ({"characters": characters} if characters else {})

"""Decides what an editor's client asks and shows: the policy of docs/client-policy.md.

Pure: events with their times go in, decisions come out. Knows neither gRPC nor an event loop nor an editor. Every
implementation passes the cases of editors/policy_cases.json.
"""

from completion_client.editing.messages import (
    Ask,
    Cancel,
    Change,
    Decision,
    Extent,
    Hide,
    Mode,
    Report,
    Show,
    Text,
    Trigger,
    Wait,
)
from completion_client.editing.policy import EditingPolicy
from completion_client.editing.settings import EditingSettings, SnippetSettings
from completion_client.editing.snippets import Snippet, SnippetRing

__all__ = [
    "Ask",
    "Cancel",
    "Change",
    "Decision",
    "EditingPolicy",
    "EditingSettings",
    "Extent",
    "Hide",
    "Mode",
    "Report",
    "Show",
    "Snippet",
    "SnippetRing",
    "SnippetSettings",
    "Text",
    "Trigger",
    "Wait",
]

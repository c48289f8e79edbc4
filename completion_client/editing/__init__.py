"""Decides what an editor's client asks and shows: the policy of docs/client-policy.md.

Pure: events with their times go in, decisions come out. Knows neither gRPC nor an event loop nor an editor. Every
implementation passes the cases of editors/policy_cases.json.
"""

from completion_client.editing.line_edits import LineEdit
from completion_client.editing.messages import (
    Ask,
    AskEdit,
    Cancel,
    Change,
    Decision,
    EditDecision,
    Extent,
    Hide,
    Mode,
    Report,
    Show,
    ShowEdit,
    Text,
    Trigger,
    Wait,
)
from completion_client.editing.next_edits import NO_NEXT_EDITS, NextEditPolicy
from completion_client.editing.policy import EditingPolicy
from completion_client.editing.recent_edits import RecentEdit, RecentEdits
from completion_client.editing.settings import (
    EditingSettings,
    NextEditSettings,
    RecentEditSettings,
    SnippetSettings,
)
from completion_client.editing.snippets import Snippet, SnippetRing

__all__ = [
    "NO_NEXT_EDITS",
    "Ask",
    "AskEdit",
    "Cancel",
    "Change",
    "Decision",
    "EditDecision",
    "EditingPolicy",
    "EditingSettings",
    "Extent",
    "Hide",
    "LineEdit",
    "Mode",
    "NextEditPolicy",
    "NextEditSettings",
    "RecentEdit",
    "RecentEditSettings",
    "RecentEdits",
    "Report",
    "Show",
    "ShowEdit",
    "Snippet",
    "SnippetRing",
    "SnippetSettings",
    "Text",
    "Trigger",
    "Wait",
]

"""The attacks by name. A new one is a module with a class, and a line here."""

from collections.abc import Mapping

from loadtest.bench.attacks.attack import Attack
from loadtest.bench.attacks.big_prompts import BigPrompts, ManyNames
from loadtest.bench.attacks.flood import Flood
from loadtest.bench.attacks.half_messages import HalfMessages
from loadtest.bench.attacks.idle_sessions import IdleSessions
from loadtest.bench.attacks.refused_prefixes import RefusedPrefixes
from loadtest.bench.attacks.resets import Resets
from loadtest.bench.attacks.snippet_bomb import SnippetBomb

ATTACKS: Mapping[str, type[Attack]] = {
    attack.name: attack
    for attack in (
        SnippetBomb,
        RefusedPrefixes,
        HalfMessages,
        IdleSessions,
        Resets,
        Flood,
        BigPrompts,
        ManyNames,
    )
}

"""The attacks by name. A new one is a module with a class, and a line here."""

from collections.abc import Mapping

from loadtest.bench.attacks.attack import Attack
from loadtest.bench.attacks.kinds.big_prompts import BigPrompts, ManyNames
from loadtest.bench.attacks.kinds.flood import Flood
from loadtest.bench.attacks.kinds.half_messages import HalfMessages
from loadtest.bench.attacks.kinds.idle_sessions import IdleSessions
from loadtest.bench.attacks.kinds.refused_prefixes import RefusedPrefixes
from loadtest.bench.attacks.kinds.resets import Resets
from loadtest.bench.attacks.kinds.snippet_bomb import SnippetBomb

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

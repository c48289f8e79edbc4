"""What the users ask for. Pure."""

from dataclasses import dataclass

from loadtest.planning.assumptions import Answers, Users
from loadtest.traffic.typist import TypingModel


@dataclass(frozen=True, slots=True)
class Demand:
    """The requests of all sessions at the busiest time. Shares are of the requests, prefetches included."""

    sessions: int
    requests_per_s: float
    """Requests of all sessions."""
    shown_share: float
    """Completions that are shown: in time, with text, and long enough before the next key."""
    prefetch_share: float
    """Prefetches."""
    with_first_text_share: float
    """Requests whose first text comes before the next key, if they have text."""
    standing_share: float
    """Requests whose text, if they have any, stands for long enough before the next key."""
    superseded_share: float
    """Requests that the next key overtakes before their answer is whole."""
    held_s: float
    """How long a request holds its slot on average: until its answer is whole or the next key comes."""
    generated_tokens: float
    """Tokens generated for a request on average."""
    engine_share: float
    """Requests that reach a GPU; a cache answers the others."""

    @property
    def shown_per_s(self) -> float:
        """Completions shown at the busiest time."""
        return self.requests_per_s * self.shown_share

    @property
    def requests_per_session_hour(self) -> float:
        """Requests of one open session in an hour like the busiest."""
        return self.requests_per_s * 3600 / self.sessions

    @property
    def shown_per_session_hour(self) -> float:
        """Completions shown to one open session in an hour like the busiest."""
        return self.shown_per_s * 3600 / self.sessions


def demand_of(users: Users, answers: Answers) -> Demand:
    """Return what the sessions ask for, if each answer starts at once."""
    gaps, debounce_s = TypingModel(away_share=users.away_share), users.debounce_ms / 1000
    typed_per_key = gaps.requests_per_key(debounce_s)
    requests_per_key = typed_per_key + users.prefetch_share
    typed_share = typed_per_key / requests_per_key
    standing_share = typed_share * gaps.share_standing(debounce_s, answers.first_text_s + answers.readable_ms / 1000)
    held_s = gaps.mean_standing_s(debounce_s, answers.service_s)
    first_token_s = min(answers.first_token_ms / 1000, answers.service_s)
    requests_per_s = users.sessions * users.typing_share * gaps.keys_per_s * requests_per_key
    if users.requests_per_session_hour is not None:
        requests_per_s = users.sessions * users.requests_per_session_hour / 3600
    shown_share = answers.shown_share
    if shown_share is None:
        shown_share = standing_share * answers.text_share * answers.in_time
    return Demand(
        sessions=users.sessions,
        requests_per_s=requests_per_s,
        shown_share=shown_share,
        prefetch_share=1 - typed_share,
        with_first_text_share=typed_share * gaps.share_standing(debounce_s, answers.first_text_s),
        standing_share=standing_share,
        superseded_share=1 - gaps.share_standing(debounce_s, answers.service_s),
        held_s=held_s,
        generated_tokens=answers.tokens_per_s * (held_s - gaps.mean_standing_s(debounce_s, first_token_s)),
        engine_share=1 - users.cached_share,
    )

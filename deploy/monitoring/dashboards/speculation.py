"""Dashboard "speculation": draft tokens by position and by K."""

from grafana_foundation_sdk.builders import dashboard

from deploy.monitoring.dashboards.panels import (
    SHARE,
    TOKENS_PER_SECOND,
    Query,
    Section,
    bars,
    each_instance,
    half_lines,
    increase,
    lines,
    new_dashboard,
    quantile,
    rate,
    rates,
    ratio,
)

_DRAFTED, _ACCEPTED = (f"completion_speculation_{kind}_tokens_total" for kind in ("drafted", "accepted"))
_STEPS = "completion_speculation_steps_total"
_FIRST = 'position="1"'


def build() -> dashboard.Dashboard:
    """Return the dashboard."""
    text = "Acceptance by position and K, and what it gains."
    return new_dashboard("speculation", "Completions: speculation", text, _acceptance(), _speed())


def _acceptance() -> Section:
    return (
        "By position and K",
        bars(
            "Accepted, by position",
            "Of the draft tokens at each position, those accepted, with all before them.",
            SHARE,
            Query(_accepted("position"), "{{position}}"),
        ),
        bars(
            "Accepted, by K and position",
            "The same, for each active K.",
            SHARE,
            Query(_accepted("k", "position"), "K={{k}}, position {{position}}"),
        ),
        bars(
            "Tokens of a step, by K",
            "Mean tokens that a generation gets from a step with a draft: accepted ones and 1.",
            "suffix: tokens",
            Query(f"1 + {increase(_ACCEPTED, by=('k',))} / ({increase(_DRAFTED, _FIRST, by=('k',))} > 0)", "K={{k}}"),
        ),
        half_lines(
            "Accepted over time, by position",
            "A fall at all positions is a change of the text or the model.",
            SHARE,
            Query(ratio(rate(_ACCEPTED, by=("position",)), rate(_DRAFTED, by=("position",))), "{{position}}"),
        ),
        half_lines(
            "Accepted over time, by K",
            "Acceptance falls with K; judge K by tokens per second.",
            SHARE,
            Query(ratio(rate(_ACCEPTED, by=("k",)), rate(_DRAFTED, by=("k",))), "K={{k}}"),
        ),
    )


def _speed() -> Section:
    return (
        "K and speed",
        each_instance(
            "K", "Draft tokens of a step with as many generations as run now.", "completion_num_speculative_tokens"
        ),
        lines(
            "Steps by K",
            "Engine steps a second; K is the length of the longest draft.",
            "suffix: steps/s",
            Query(rate(_STEPS, by=("k",)), "K={{k}}"),
            stacked=True,
        ),
        lines(
            "Drafted and accepted",
            "Draft tokens a second of ended requests.",
            TOKENS_PER_SECOND,
            Query(rate("completion_tokens_total", 'kind="drafted"'), "drafted"),
            Query(rate("completion_tokens_total", 'kind="accepted_draft"'), "accepted"),
        ),
        half_lines(
            "Generated tokens",
            "All that the engine computed.",
            TOKENS_PER_SECOND,
            rates("completion_engine_generated_tokens_total", by=("instance",)),
            stacked=True,
        ),
        half_lines(
            "Time of a token",
            "Decode time of one token of one request.",
            "s",
            Query(quantile("0.5", "completion_stage_seconds", 'stage="decode_token"'), "p50"),
            Query(quantile("0.95", "completion_stage_seconds", 'stage="decode_token"'), "p95"),
        ),
    )


def _accepted(*by: str) -> str:
    return ratio(increase(_ACCEPTED, by=by), increase(_DRAFTED, by=by))

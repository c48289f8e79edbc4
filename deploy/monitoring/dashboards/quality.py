"""Dashboard "quality": what users see and accept, by latency, and what was computed for nobody."""

from grafana_foundation_sdk.builders import dashboard

from deploy.monitoring.dashboards.panels import (
    PER_SECOND,
    SHARE,
    TOKENS_PER_SECOND,
    Query,
    Section,
    bars,
    increase,
    lines,
    new_dashboard,
    rate,
    rates,
    ratio,
)

_QUALITY = "completion_quality_total"
_SHOWN, _ACCEPTED, _SURVIVED = (f'event="{event}"' for event in ("shown", "accepted", "survived"))


def build() -> dashboard.Dashboard:
    """Return the dashboard."""
    text = "Acceptance by latency, K, model and region; tokens wasted and saved."
    sections = (_acceptance(), _over_time(), _wasted())
    return new_dashboard("quality", "Completions: seen and wasted", text, *sections)


def _accepted(*by: str) -> str:
    return ratio(increase(_QUALITY, _ACCEPTED, by=by), increase(_QUALITY, _SHOWN, by=by))


def _acceptance() -> Section:
    survived = ratio(increase(_QUALITY, _SURVIVED, by=("ttft",)), increase(_QUALITY, _ACCEPTED, by=("ttft",)))
    return (
        "Latency against acceptance",
        bars(
            "Accepted, by TTFT in seconds",
            "Of the completions that were shown, those that users accepted.",
            SHARE,
            Query(_accepted("ttft"), "{{ttft}}"),
        ),
        bars(
            "Shown, by TTFT in seconds",
            "Completions that were shown, in the time range.",
            "short",
            Query(increase(_QUALITY, _SHOWN, by=("ttft",)), "{{ttft}}"),
        ),
        bars(
            "Survived, by TTFT in seconds",
            "Of the accepted completions, those still there half a minute later.",
            SHARE,
            Query(survived, "{{ttft}}"),
        ),
        bars(
            "Accepted, by K",
            "K was active when the completion was generated; cached ones have none.",
            SHARE,
            Query(_accepted("k"), "K={{k}}"),
        ),
        bars("Accepted, by cache", "none: computed for the request.", SHARE, Query(_accepted("cache"), "{{cache}}")),
        bars(
            "Accepted, by region and model",
            "Compare before and after a change of the model.",
            SHARE,
            Query(_accepted("region", "model"), "{{region}} {{model}}"),
        ),
    )


def _over_time() -> Section:
    return (
        "Seen",
        lines(
            "Shown, accepted, survived",
            "Completions a second, as editors report them.",
            PER_SECOND,
            rates(_QUALITY, by=("event",)),
        ),
        lines(
            "Reports",
            "Feedback of editors by kind; refused reports name no known completion.",
            PER_SECOND,
            rates("completion_feedback_total", by=("kind",)),
        ),
        lines(
            "Accepted characters",
            "Characters a second of completions that users accepted.",
            "suffix: characters/s",
            Query(rate("completion_accepted_characters_total"), "characters"),
        ),
    )


def _wasted() -> Section:
    wasted, generated = rate("completion_wasted_tokens_total"), rate("completion_engine_generated_tokens_total")
    aborted = rate("completion_engine_aborted_tokens_total")
    return (
        "Wasted and saved",
        lines(
            "Wasted share",
            "Of the generated tokens, those for requests that nobody waited for, and those after an abort.",
            SHARE,
            Query(ratio(f"({wasted} + {aborted})", generated), "wasted"),
        ),
        lines(
            "Wasted tokens",
            "By the outcome of their requests; diverged: the user typed something else.",
            TOKENS_PER_SECOND,
            rates("completion_wasted_tokens_total", by=("outcome",)),
            Query(aborted, "after an abort"),
            stacked=True,
        ),
        lines(
            "Saved tokens",
            "Reused by newer requests whose users typed the generated text, or cached completions.",
            TOKENS_PER_SECOND,
            Query(rate("completion_reattached_tokens_total"), "reattached"),
            Query(rate("completion_cache_saved_tokens_total", 'kind="completion"'), "cached"),
        ),
        lines(
            "Generations kept",
            "Generations that a further request read instead of a new one, and that diverged.",
            PER_SECOND,
            Query(rate("completion_generations_reattached_total"), "reattached"),
            Query(rate("completion_generations_joined_total"), "joined"),
            Query(rate("completion_generations_diverged_total"), "diverged"),
            width=24,
        ),
    )

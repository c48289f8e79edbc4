"""Shows a plan as tables and as JSON."""

import math
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.table import Table

from loadtest.planning import stated
from loadtest.planning.assumptions import Users
from loadtest.planning.capacity import cold_requests, computed_tokens
from loadtest.planning.fleet import Plan, cost_levers, variations
from loadtest.planning.prefix_cache import PrefixCache
from loadtest.traffic.typist import TypingModel

_MAX_VARIATIONS = 14


def as_json(plan: Plan, target_usd: float | None) -> dict[str, Any]:
    """Return the plan for JSON. Times are seconds, rates 1/s; a figure without a value is null."""
    found: dict[str, Any] = {
        "assumptions": asdict(plan.assumptions),
        "model": stated.sentences(plan),
        "fleet": asdict(plan.requirements),
        "measured": plan.measured and asdict(plan.measured),
        "demand": asdict(plan.demand) | {"shown_per_session_hour": plan.demand.shown_per_session_hour},
        "capacity": asdict(plan.capacity),
        "prefix_cache": plan.cache
        and {
            "kv_gb": plan.cache.kv_gb,
            "documents": plan.cache.documents,
            "hit_share": plan.cache.hit_share(plan.capacity.sessions),
        },
        "regions": [asdict(region) | {"holds": region.holds} for region in plan.regions],
        "gpus": plan.gpus,
        "needed_gpus": plan.needed_gpus,
        "usd_per_hour": plan.usd_per_hour,
        "usd_per_month": plan.usd_per_month,
        "usd_per_shown": plan.usd_per_shown,
        "usd_per_request": plan.usd_per_request,
        "sensitivity": [
            {
                "name": each.name,
                "value": each.value,
                **{
                    end: {"value": value, "needed_gpus": at.needed_gpus, "usd_per_shown": at.usd_per_shown}
                    for end, value, at in (("low", each.low, each.at_low), ("high", each.high, each.at_high))
                },
            }
            for each in variations(plan)
        ],
    }
    if target_usd is not None:
        found["target"] = {
            "usd_per_shown": target_usd,
            "ways": [asdict(each) for each in cost_levers(plan, target_usd)],
        }
    return _only_finite(found)  # type: ignore[no-any-return]


def show(plan: Plan, console: Console, *, seats: int | None, target_usd: float | None) -> None:
    """Print the plan."""
    console.print(_headline(plan), style="bold", soft_wrap=True)
    console.print(_steps(plan, seats))
    console.print(_regions(plan))
    for line in _verdicts(plan):
        console.print(line, soft_wrap=True)
    console.print(_sensitivity(plan))
    if target_usd is not None:
        console.print(_levers(plan, target_usd))
    console.print("Assumed", style="bold")
    for line in (*stated.numbers(plan), *stated.sentences(plan)):
        console.print(line, soft_wrap=True)


def _table(*columns: str, left: tuple[int, ...] = (0,)) -> Table:
    """Return a table without rows, whose columns except those numbered in `left` are numbers."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    for number, name in enumerate(columns):
        table.add_column(name, justify="left" if number in left else "right")
    return table


def _headline(plan: Plan) -> str:
    each = sorted({region.gpus for region in plan.regions})
    said = f"{each[0]}" if len(each) == 1 else f"{each[0]} to {each[-1]}"
    where = f"{said} in each of {len(plan.regions)} regions" if len(plan.regions) > 1 else f"in {plan.regions[0].name}"
    return (
        f"{plan.gpus} GPU{'s' if plan.gpus > 1 else ''}, {where}: ${plan.usd_per_hour:,.2f} an hour, "
        f"${plan.usd_per_month:,.0f} a month, ${plan.usd_per_shown:.6f} for a completion shown"
    )


def _steps(plan: Plan, seats: int | None) -> Table:
    table = _table("from seats to GPUs", "", "how", left=(0, 2))
    for name, value, how in _step_rows(plan, seats):
        table.add_row(name, value, how)
    return table


def _step_rows(plan: Plan, seats: int | None) -> Iterator[tuple[str, str, str]]:
    users, answers, gpu, demand = plan.assumptions.users, plan.assumptions.answers, plan.assumptions.gpu, plan.demand
    if seats is not None:
        yield "seats", f"{seats:,}", ""
    yield "open sessions", f"{users.sessions:,}", "at the busiest time"
    how = "counted"
    if users.requests_per_session_hour is None:
        how = _typing(users)
    how += f"; {demand.requests_per_session_hour:,.0f} a session-hour"
    yield "requests/s", f"{demand.requests_per_s:,.0f}", how
    if plan.is_shown_share_modelled:
        how = f"the next key comes before the answer is whole, {answers.service_s * 1000:.0f} ms"
        yield "superseded", f"{demand.superseded_share:.0%}", how
    how = f"{answers.readable_ms:g} ms before the next key, with text, in time; {demand.shown_per_s:,.0f}/s"
    if not plan.is_shown_share_modelled:
        how = f"counted or measured; {demand.shown_per_s:,.0f}/s"
    yield "shown", f"{demand.shown_share:.1%}", how
    if plan.cache is not None:
        yield from _cache_rows(plan, plan.cache)
        cold = cold_requests(plan.capacity.sessions, gpu, plan.cache)
        yield "a slot is held", f"{demand.held_s * 1000:.0f} ms", "until the answer is whole or the next key comes"
        how = f"{gpu.new_prompt_tokens:g} of the prompt, {cold.share * cold.tokens:.0f} of documents not in the cache, "
        how += f"{demand.generated_tokens:.1f} generated in steps that compute {gpu.draft_tokens + 1} and give "
        how += f"{gpu.tokens_per_step:.1f}"
        yield "tokens of a request", f"{computed_tokens(demand, gpu, cold):.0f}", how
    bounds = ", ".join(f"{name} {rate:,.0f}" for name, rate in plan.capacity.bounds.items())
    if plan.measured is not None:
        bounds = plan.measured.source
    yield "one server, sessions", f"{plan.capacity.sessions:,.0f}", ""
    yield "one server, requests/s", f"{plan.capacity.requests_per_s:,.0f}", bounds


def _cache_rows(plan: Plan, cache: PrefixCache) -> Iterator[tuple[str, str, str]]:
    gpu, memory = plan.assumptions.gpu, plan.assumptions.memory
    how = f"{gpu.gpus_per_server} x " if gpu.gpus_per_server > 1 else ""
    how += f"({memory.gpu_memory_share:.0%} of {memory.gpu_memory_gb:g} GB - {memory.reserved_gb:g} GB) - "
    yield "KV cache", f"{cache.kv_gb:.1f} GB", f"{how}{memory.weights_gb:.1f} GB of weights"
    how = f"{memory.document_tokens:g} tokens of {memory.kv_bytes_per_token / 1e6:.2f} MB each"
    yield "documents in it", f"{cache.documents:.0f}", how
    hits = cache.hit_share(plan.capacity.sessions)
    yield "document found there", f"{hits:.1%}", f"of the requests, with {plan.capacity.sessions:,.0f} sessions"


def _typing(users: Users) -> str:
    keys_per_s = TypingModel(away_share=users.away_share).keys_per_s
    return f"{users.typing_share:.0%} type, {keys_per_s:.2f} keys/s each, {users.debounce_ms:g} ms without a key"


def _regions(plan: Plan) -> Table:
    lost = f"with {plan.requirements.num_lost} lost"
    columns = "busy", f"busy {lost}", "document found", f"found {lost}"
    table = _table("region", "requests/s", "GPUs", "needed", *columns)
    for region in plan.regions:
        shares = region.busy, region.busy_if_lost, region.hit_share, region.hit_share_if_lost
        figures = f"{region.requests_per_s:,.0f}", f"{region.gpus}", f"{region.needed_gpus}"
        table.add_row(region.name, *figures, *("-" if math.isnan(share) else f"{share:.0%}" for share in shares))
    return table


def _verdicts(plan: Plan) -> Iterator[str]:
    answers, money, demand = plan.assumptions.answers, plan.assumptions.money, plan.demand
    aim = f"{answers.in_time:.0%} of the answers within {answers.within_ms:g} ms"
    short = [f"{each.name} needs {each.needed_gpus}, has {each.gpus}" for each in plan.regions if not each.holds]
    if short:
        yield f"Too few GPUs for {aim}: {'; '.join(short)}."
    yield from _cold_start(plan)
    per_hour = demand.shown_per_session_hour
    mean = plan.shown_per_hour / demand.sessions
    yield (
        f"Shown to one open session: {per_hour:.0f} in an hour like the busiest, {mean:.1f} in a mean hour "
        f"(mean load {money.mean_load:.0%})."
    )
    measured = plan.measured
    if measured is not None and measured.requests_per_session_s is not None:
        tested, planned = measured.requests_per_session_s * 3600, demand.requests_per_session_hour
        yield f"A session of the test sent {tested:,.0f} requests an hour, one of this plan sends {planned:,.0f}."


def _cold_start(plan: Plan) -> Iterator[str]:
    """Yield what the users of lost regions do to the server that has the most work with them."""
    starts = [(region.cold_start, region.name) for region in plan.regions if region.cold_start is not None]
    if not starts:
        return
    start, name = max(starts, key=lambda each: each[0].longest_wait_s)
    then = f"up to {start.longest_wait_s:.2f} s of work pile up, done after {start.over_after_s:.1f} s"
    if math.isinf(start.longest_wait_s):
        then = "it does not catch up"
    lost = plan.requirements.num_lost
    who = f"{start.users:.0f} users who type"
    yield f"With {lost} lost, {who} come to a server of {name} without their documents: {then}."


def _sensitivity(plan: Plan) -> Table:
    first = "with this alone at its low / high estimate"
    table = _table(first, "assumed", "low", "high", "GPUs needed", "$ for a completion shown")
    for each in variations(plan)[:_MAX_VARIATIONS]:
        gpus = f"{each.at_low.needed_gpus} / {each.at_high.needed_gpus}"
        costs = f"{each.at_low.usd_per_shown:.6f} / {each.at_high.usd_per_shown:.6f}"
        table.add_row(option_of(each.name), *(f"{value:g}" for value in (each.value, each.low, each.high)), gpus, costs)
    return table


def _levers(plan: Plan, target_usd: float) -> Table:
    table = _table(f"with this alone a completion shown costs ${target_usd:g}", "", "", left=(0, 2))
    for each in cost_levers(plan, target_usd):
        note = "" if each.is_possible else "not possible"
        table.add_row(_LEVER_TEXTS.get(each.name, option_of(each.name)), f"{each.value:.3g}", note)
    return table


_LEVER_TEXTS = {"shown_per_session_mean_hour": "completions shown to an open session in a mean hour"}


def option_of(name: str) -> str:
    """Return the option of a field."""
    return f"--{name.replace('_', '-')}"


def _only_finite(value: Any) -> Any:  # noqa: ANN401 - any JSON
    if isinstance(value, dict):
        return {key: _only_finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_only_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value

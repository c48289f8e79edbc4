"""Compares what editors' clients ask for, and what their users see, in virtual time.

The same users type the same keys with each client: this project's policy, the load tester's own editor, llama.vim and
llama.vscode; and with the policy, each of its rules switched off alone. The server's service, scheduler and prompts are
the real ones, the engine is a timed one with a prefix cache (45 ms for prompts, 8 ms for a step).

- calm: the server has capacity to spare
- busy: all users ask more than the server can answer
- reacting: as calm, and the users accept every text that is right as a whole, and dismiss half of the wrong ones
"""

from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from loadtest.bench.runner.benchmark import Options as BenchmarkOptions
from loadtest.bench.runner.benchmark import Result, benchmark, option
from loadtest.bench.runner.figures import shown, text_table
from loadtest.simulation.answers import AnswerModel
from loadtest.simulation.patterns import PATTERNS
from loadtest.simulation.patterns.ablation import ABLATIONS
from loadtest.simulation.typing_user import UserModel
from loadtest.simulation.typing_world import ClientFigures, World, run

POLICY = "policy"
WORLDS = {
    "calm": World(users=20, seconds=120),
    "busy": World(users=250, seconds=25),
    "reacting": World(users=20, seconds=120, user=UserModel(accepts_share=1.0, rejects_share=0.5)),
}
_ABLATED_IN = {"rhythm": "busy", "cancel": "busy", "back_off": "busy", "rejection": "reacting", "prefetch": "reacting"}
"""Where a rule acts; the others act in "calm"."""
_FIGURES = ("tokens_per_seen", "seen_per_s", "requests_per_key", "tokens_per_right", "right_per_s")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Options(BenchmarkOptions):
    seeds: int = option(3, "Runs of each kind, each with other users, texts and answers.", click.IntRange(1))
    seconds: float | None = option(None, "Virtual time of each run.  [default: 120; busy: 25]", click.FloatRange(5))
    predictable: float = option(
        AnswerModel().predictable_share,
        "Share of the words that the model knows.",
        click.FloatRange(0, 1, max_open=True),
    )
    processes: int = option(2, "Runs at once.", click.IntRange(1))


@dataclass(frozen=True, slots=True)
class _Run:
    world: str
    client: str
    """A pattern, or the rule that is missing."""
    seed: int


@benchmark(_Options)
def main(options: _Options, _console: Console) -> Result:
    """Compare clients by the engine's tokens for each seen completion. The last line is a JSON object.

    A completion is seen if its text stands for 200 ms before the user's next event. Tokens are those that the engine
    computes: prompt tokens that are not in its prefix cache, and generated ones.

    \b
    Example:
        python -m loadtest.bench.policy --seeds 1 --seconds 30
    """
    clients = [(world, client) for world in ("calm", "busy") for client in PATTERNS]
    clients += [("reacting", POLICY), *((_world_of(rule), rule) for rule in ABLATIONS)]
    runs = [_Run(world, client, seed) for world, client in clients for seed in range(1, options.seeds + 1)]
    with ProcessPoolExecutor(options.processes) as pool:
        found = dict(zip(runs, pool.map(_measure, runs, [options] * len(runs)), strict=True))
    means = {key: _means([found[_Run(*key, seed)] for seed in range(1, options.seeds + 1)]) for key in clients}
    figures: dict[str, Any] = {"num_seeds": options.seeds}
    for world, client in clients:
        if client in PATTERNS:
            prefix = f"{world}_{client.replace('.', '_')}"
            figures |= {f"{prefix}_{name}": round(value, 3) for name, value in means[world, client].items()}
    for rule in ABLATIONS:
        figures |= _changes(rule, found, range(1, options.seeds + 1))
    return Result(figures, [_clients_table(means), _rules_table(figures)])


def _world_of(rule: str) -> str:
    return _ABLATED_IN.get(rule, "calm")


def _measure(each: _Run, options: _Options) -> dict[str, float]:
    world = WORLDS[each.world]
    answers = AnswerModel(options.predictable, seed=each.seed)
    world = replace(world, answers=answers, seed=each.seed, seconds=options.seconds or world.seconds)
    return figures_of(run(world, PATTERNS.get(each.client) or ABLATIONS[each.client]), world.seconds)


def _means(runs: Sequence[Mapping[str, float]]) -> dict[str, float]:
    return {name: fmean(each[name] for each in runs) for name in _FIGURES}


def _changes(rule: str, found: Mapping[_Run, Mapping[str, float]], seeds: range) -> dict[str, float]:
    """Return the changes that the lack of a rule makes, as shares: the mean, the least and the most over the seeds."""
    world = _world_of(rule)
    changes: dict[str, float] = {}
    for name in _FIGURES:
        each = [found[_Run(world, rule, seed)][name] / found[_Run(world, POLICY, seed)][name] - 1 for seed in seeds]
        key = f"without_{rule}_{name}"
        changes |= {key: round(fmean(each), 3), f"{key}_low": round(min(each), 3), f"{key}_high": round(max(each), 3)}
    return changes


def figures_of(found: ClientFigures, seconds: float) -> dict[str, float]:
    """Return the figures of a run, over all users."""
    num_seen = sum(user.num_seen for user in found.users)
    num_right = sum(user.num_right for user in found.users)
    num_tokens = found.num_prefilled_tokens + found.num_generated_tokens
    return {
        "tokens_per_seen": num_tokens / max(1, num_seen),
        "seen_per_s": num_seen / seconds,
        "requests_per_key": found.num_requests / max(1, sum(user.num_keys for user in found.users)),
        "tokens_per_right": num_tokens / max(1, num_right),
        "right_per_s": num_right / seconds,
    }


def _clients_table(means: Mapping[tuple[str, str], Mapping[str, float]]) -> Table:
    rows = tuple(
        (*key, *(shown(value) for value in figures.values())) for key, figures in means.items() if key[1] in PATTERNS
    )
    return text_table("Clients", ("", "client", *_FIGURES), rows, num_words=2)


def _rules_table(figures: Mapping[str, float]) -> Table:
    rows = tuple(
        (rule, _world_of(rule), *(f"{figures[f'without_{rule}_{name}']:+.1%}" for name in _FIGURES))
        for rule in ABLATIONS
    )
    return text_table("Changes without one rule", ("without", "", *_FIGURES), rows, num_words=2)


if __name__ == "__main__":
    main()

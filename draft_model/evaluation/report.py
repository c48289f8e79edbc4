"""Reports the figures of a pair as tables, as JSON, and as a picture."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import matplotlib as mpl

from draft_model.core import replacing_file, replacing_folder
from draft_model.evaluation.kinds import Kind
from draft_model.evaluation.offline import MAX_DRAFT, AcceptanceTally
from draft_model.evaluation.online import EngineFigures, EngineRun, IdentityReport, describe

REPORT = "report.json"
"""The file that marks a report's folder."""


@dataclass(frozen=True)
class TallyFigures:
    """The offline figures at one temperature. Shares are 0 to 1, some by K; `per_position` is for K = 8.

    Intervals are 95%, over draws of cursors.
    """

    num_tokens: int
    agreement: float
    agreement_interval: tuple[float, float]
    acceptance_by_length: dict[int, float]
    acceptance_intervals: dict[int, tuple[float, float]]
    mean_accepted_length: dict[int, float]
    per_position: tuple[float, ...]
    by_kind: dict[str, tuple[float, int]]
    """For each kind of code the share of tokens that the draft predicts, and the number of tokens."""


@dataclass(frozen=True)
class OfflineFigures:
    """The figures measured in transformers, by temperature; 0 is greedy."""

    num_completions: int
    at_temperature: dict[float, TallyFigures]

    @property
    def greedy(self) -> TallyFigures:
        """The figures at temperature 0."""
        return self.at_temperature[0.0]


def tally_figures(tally: AcceptanceTally) -> TallyFigures:
    """The figures of the counts at one temperature."""
    lengths = range(1, MAX_DRAFT + 1)
    return TallyFigures(
        tally.num_tokens,
        tally.agreement,
        tally.agreement_interval,
        {length: tally.acceptance(length).per_token for length in lengths},
        {length: tally.acceptance_interval(length) for length in lengths},
        {length: tally.acceptance(length).mean_length for length in lengths},
        tally.acceptance(MAX_DRAFT).per_position,
        tally.by_kind(),
    )


def offline_figures(num_completions: int, tallies: Mapping[float, AcceptanceTally]) -> OfflineFigures:
    """The figures of the counts at each temperature."""
    return OfflineFigures(num_completions, {degree: tally_figures(tally) for degree, tally in tallies.items()})


def render_report(offline: OfflineFigures, engine: EngineFigures | None, identity: IdentityReport | None = None) -> str:
    """Tables in Markdown."""
    greedy = offline.greedy
    degrees = list(offline.at_temperature.items())
    heads = " | ".join("greedy" if not degree else f"at {degree:g}" for degree, _ in degrees)
    lines = [
        f"{offline.num_completions} completions, {greedy.num_tokens:,} tokens greedily; the draft predicts "
        f"{_with_interval(greedy.agreement, greedy.agreement_interval)} of them. Offline, in brackets 95% intervals:",
        "",
        f"| K | accepted of drafted: {heads} | tokens a step: {heads} | accepted up to here, K = {MAX_DRAFT} |",
        "| --- |" + " --- |" * (2 * len(degrees) + 1),
        *(_length_line(length, [found for _, found in degrees]) for length in greedy.acceptance_by_length),
        "",
        f"| kind of code, predicted | {heads} | tokens |",
        "| --- |" + " --- |" * (len(degrees) + 1),
        *(_kind_line(kind.value, [found for _, found in degrees]) for kind in Kind),
    ]
    lines += _engine_lines(engine) if engine else []
    lines += ["", describe(identity)] if identity else []
    return "\n".join(lines) + "\n"


def _length_line(length: int, found: Sequence[TallyFigures]) -> str:
    accepted = " | ".join(
        _with_interval(one.acceptance_by_length[length], one.acceptance_intervals[length]) for one in found
    )
    steps = " | ".join(f"{one.mean_accepted_length[length]:.2f}" for one in found)
    return f"| {length} | {accepted} | {steps} | {found[0].per_position[length - 1]:.1%} |"


def _with_interval(share: float, interval: tuple[float, float]) -> str:
    low, high = interval
    return f"{share:.1%} ({100 * low:.1f} to {100 * high:.1f})"


def _kind_line(kind: str, found: Sequence[TallyFigures]) -> str:
    return f"| {kind} | {' | '.join(f'{one.by_kind[kind][0]:.1%}' for one in found)} | {found[0].by_kind[kind][1]:,} |"


def _engine_lines(engine: EngineFigures) -> list[str]:
    degrees = list(engine.runs[0].acceptance)
    heads = " | ".join("greedy" if not degree else f"at {degree:g}" for degree in degrees)
    without = engine.tokens_per_s_without_draft
    return [
        "",
        f"In vLLM, one sequence at a time. Without the draft: {without[0]:.0f} tokens/s before the runs with it and "
        f"{without[1]:.0f} after them; speed-ups are over the mean of the two. Steps, in turn: of the target "
        f"{' and '.join(f'{one.target_ms:.2f}' for one in engine.steps)} ms, of the draft "
        f"{' and '.join(f'{one.draft_ms:.2f}' for one in engine.steps)} ms.",
        "",
        f"| K | accepted of drafted: {heads} | tokens a step: {heads} | greedy text the same | tokens/s | speed-up | "
        "expected |",
        "| --- |" + " --- |" * (2 * len(degrees) + 4),
        *(_run_line(run, degrees) for run in engine.runs),
    ]


def _run_line(run: EngineRun, degrees: Sequence[float]) -> str:
    accepted = " | ".join(f"{run.acceptance[degree]:.1%}" for degree in degrees)
    steps = " | ".join(f"{run.mean_accepted_length[degree]:.2f}" for degree in degrees)
    return (
        f"| {run.num_speculative_tokens} | {accepted} | {steps} | {run.identical_share:.1%} | {run.tokens_per_s:.0f} | "
        f"{run.speedup:.2f} | {run.expected_speedup:.2f} |"
    )


def as_record(
    offline: OfflineFigures, engine: EngineFigures | None, identity: IdentityReport | None = None
) -> dict[str, Any]:
    """All figures for JSON; None for parts that were not measured."""
    return {
        "offline": asdict(offline),
        "engine": asdict(engine) if engine else None,
        "identity": {"share": identity.share, **asdict(identity)} if identity else None,
    }


def write_report(
    out: Path, offline: OfflineFigures, engine: EngineFigures | None, identity: IdentityReport | None = None
) -> None:
    """Write `report.md`, `report.json` and `acceptance.png` to the folder `out`, all or none."""
    with replacing_folder(out, REPORT) as folder:
        (folder / "report.md").write_text(render_report(offline, engine, identity), encoding="utf-8")
        text = json.dumps(as_record(offline, engine, identity), indent=1) + "\n"
        (folder / REPORT).write_text(text, encoding="utf-8")
        draw_acceptance(offline, engine, folder / "acceptance.png")


def draw_acceptance(offline: OfflineFigures, engine: EngineFigures | None, path: Path) -> None:
    """Acceptance by position beside acceptance by kind."""
    mpl.use("agg")
    from matplotlib import pyplot  # after the choice of a backend without a screen

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(10, 4), layout="constrained")
    for degree, found in offline.at_temperature.items():
        label = f"offline, {f'temperature {degree:g}' if degree else 'greedy'}"
        left.plot(range(1, MAX_DRAFT + 1), [100 * share for share in found.per_position], "o-", label=label)
    if engine:
        longest = max(engine.runs, key=lambda run: run.num_speculative_tokens)
        shares = longest.per_position[0.0]
        label = f"vLLM, greedy, K = {longest.num_speculative_tokens}"
        left.plot(range(1, len(shares) + 1), [100 * share for share in shares], "s--", label=label)
    left.set(xlabel="position in the draft", ylabel="accepted up to here, %", ylim=(0, 100))
    left.legend()
    names = [kind.value for kind in Kind]
    right.barh(names, [100 * offline.greedy.by_kind[name][0] for name in names])
    right.set(xlabel="predicted, greedy, %", xlim=(0, 100))
    right.invert_yaxis()
    with replacing_file(path) as file:
        figure.savefig(file, format="png", dpi=120)
    pyplot.close(figure)

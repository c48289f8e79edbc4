"""The figures of a pair as a table, as JSON, and as a picture."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import matplotlib as mpl

from draft_model.evaluation.acceptance import Acceptance, expected_speedup
from draft_model.evaluation.kinds import Kind
from draft_model.evaluation.offline import MAX_DRAFT, Tally
from draft_model.files import folder_atomically, replacing


@dataclass(frozen=True)
class OfflineFigures:
    """Measured in transformers. Shares are 0 to 1; `by_kind` has the share and of how many tokens it is one."""

    num_completions: int
    num_tokens: int
    agreement: float
    acceptance_by_length: dict[int, float]
    per_position: tuple[float, ...]
    mean_accepted_length: dict[int, float]
    by_kind: dict[str, tuple[float, int]]
    acceptance_at_temperature: dict[float, float]


@dataclass(frozen=True)
class EngineFigures:
    """Measured in vLLM with K = `num_speculative_tokens`, one sequence at a time."""

    num_speculative_tokens: int
    acceptance: dict[float, float]
    per_position: tuple[float, ...]
    mean_accepted_length: float
    identical_share: float
    tokens_per_s: float
    tokens_per_s_without_draft: float
    speedup: float
    target_step_ms: float
    draft_step_ms: float
    expected_speedup: float


def offline_figures(tally: Tally, num_completions: int, at_temperature: Mapping[float, float]) -> OfflineFigures:
    """The figures of what was counted."""
    lengths = range(1, MAX_DRAFT + 1)
    return OfflineFigures(
        num_completions,
        tally.num_tokens,
        tally.agreement,
        {length: tally.by_length[length].per_token for length in lengths},
        tally.by_length[MAX_DRAFT].per_position,
        {length: tally.by_length[length].mean_length for length in lengths},
        tally.by_kind(),
        dict(at_temperature),
    )


def engine_figures(
    counted: Mapping[float, Acceptance],
    identical_share: float,
    speeds: tuple[float, float],
    steps_s: tuple[float, float],
) -> EngineFigures:
    """`speeds`: tokens a second with and without the draft; `steps_s`: the target's and the draft's step."""
    greedy = counted[0.0]
    length = greedy.num_speculative_tokens
    share = conditional_acceptance(greedy)
    return EngineFigures(
        length,
        {temperature: found.per_token for temperature, found in counted.items()},
        greedy.per_position,
        greedy.mean_length,
        identical_share,
        speeds[0],
        speeds[1],
        speeds[0] / speeds[1],
        steps_s[0] * 1e3,
        steps_s[1] * 1e3,
        expected_speedup(share, length, steps_s[1] / steps_s[0]),
    )


def conditional_acceptance(found: Acceptance) -> float:
    """The probability that a drafted token is accepted when those before it were, which the formula asks for."""
    tried = found.num_drafts + sum(found.accepted_at[:-1])
    return sum(found.accepted_at) / tried if tried else 0.0


def render_report(offline: OfflineFigures, engine: EngineFigures | None) -> str:
    """Tables in Markdown."""
    lines = [
        f"{offline.num_completions} greedy completions, {offline.num_tokens:,} tokens; "
        f"the draft foretells {offline.agreement:.1%} of the target's tokens.",
        "",
        "| K | accepted of drafted | tokens a step | accepted up to this position (K = 8) |",
        "| --- | --- | --- | --- |",
        *(
            f"| {length} | {offline.acceptance_by_length[length]:.1%} | {offline.mean_accepted_length[length]:.2f} | "
            f"{offline.per_position[length - 1]:.1%} |"
            for length in offline.acceptance_by_length
        ),
        "",
        "| kind of code | foretold | tokens |",
        "| --- | --- | --- |",
        *(f"| {kind} | {share:.1%} | {count:,} |" for kind, (share, count) in offline.by_kind.items()),
        "",
        "| temperature | probability that the draft's likeliest token is accepted |",
        "| --- | --- |",
        *(f"| {temperature:g} | {share:.1%} |" for temperature, share in offline.acceptance_at_temperature.items()),
    ]
    return "\n".join([*lines, *(_engine_lines(engine) if engine else [])]) + "\n"


def _engine_lines(engine: EngineFigures) -> list[str]:
    positions = ", ".join(f"{share:.1%}" for share in engine.per_position)
    temperatures = ", ".join(f"{share:.1%} at {temperature:g}" for temperature, share in engine.acceptance.items())
    return [
        "",
        f"| in vLLM, K = {engine.num_speculative_tokens} | |",
        "| --- | --- |",
        f"| accepted of drafted, by temperature | {temperatures} |",
        f"| accepted up to each position, greedy | {positions} |",
        f"| tokens a step, greedy | {engine.mean_accepted_length:.2f} |",
        f"| greedy texts identical without the draft | {engine.identical_share:.1%} |",
        f"| tokens a second with and without it | {engine.tokens_per_s:.0f}, {engine.tokens_per_s_without_draft:.0f} |",
        f"| speed-up measured, expected | {engine.speedup:.2f}, {engine.expected_speedup:.2f} |",
        f"| step of target and draft | {engine.target_step_ms:.2f} ms, {engine.draft_step_ms:.2f} ms |",
    ]


def write_report(out: Path, offline: OfflineFigures, engine: EngineFigures | None) -> None:
    """Write `report.md`, `report.json` and `acceptance.png` to the folder `out`, all or none."""
    with folder_atomically(out) as folder:
        (folder / "report.md").write_text(render_report(offline, engine), encoding="utf-8")
        told = {"offline": asdict(offline), "engine": asdict(engine) if engine else None}
        (folder / "report.json").write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")
        draw_acceptance(offline, engine, folder / "acceptance.png")


def draw_acceptance(offline: OfflineFigures, engine: EngineFigures | None, path: Path) -> None:
    """Acceptance by position beside acceptance by kind."""
    mpl.use("agg")
    from matplotlib import pyplot  # after the choice of a backend without a screen

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(10, 4), layout="constrained")
    left.plot(range(1, MAX_DRAFT + 1), [100 * share for share in offline.per_position], "o-", label="offline, K = 8")
    if engine:
        label = f"vLLM, K = {engine.num_speculative_tokens}"
        places = range(1, len(engine.per_position) + 1)
        left.plot(places, [100 * share for share in engine.per_position], "s--", label=label)
    left.set(xlabel="position in the draft", ylabel="accepted up to here, %", ylim=(0, 100))
    left.legend()
    names = [kind.value for kind in Kind]
    right.barh(names, [100 * offline.by_kind[name][0] for name in names])
    right.set(xlabel="foretold, %", xlim=(0, 100))
    right.invert_yaxis()
    with replacing(path) as file:
        figure.savefig(file, format="png", dpi=120)
    pyplot.close(figure)

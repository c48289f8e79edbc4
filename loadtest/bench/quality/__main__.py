"""The command of the benchmark of quality: `python -m loadtest.bench.quality`."""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from completion_server.core.errors import ConfigError
from completion_server.engine.vllm.offline import OfflineEngineError
from loadtest.bench.quality.contestants import (
    HEALED,
    IN_PROCESS,
    PLAIN,
    RULED,
    SERVER,
    Budget,
    plain_answers,
    ruled,
    server_answers,
    server_settings,
)
from loadtest.bench.quality.cursors import Cursor, file_cursors, humaneval_cursors
from loadtest.bench.quality.report import Answers, Scores, figures, side_by_side, tables
from loadtest.bench.runner.benchmark import (
    EXISTING_FILE,
    EXISTING_FOLDER,
    FILE,
    Result,
    ServerOptions,
    benchmark,
    option,
    write_text,
)
from loadtest.bench.runner.server import effective_config

CONTESTANTS = (PLAIN, HEALED, SERVER)
"""A further configuration of the server is one more line: "server, NAME: SECTION.KEY=VALUE SECTION.KEY=VALUE"."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Options(ServerOptions):
    model: Path = option(Path("target_model/embedded-bf16"), "The folder of the model.", EXISTING_FOLDER)
    contestants: tuple[str, ...] = option(
        CONTESTANTS,
        f"One of {', '.join(map(repr, CONTESTANTS))}, or a configuration of the server as 'NAME: KEY=VALUE ...'.",
        None,
        "--contestant",
    )
    cursors: int = option(420, "In files; about as many of each language and kind.", click.IntRange(1))
    seed: int = option(1, "Chooses files and cursors.", int)
    before: int = option(1_000, "Characters before the cursor.", click.IntRange(1))
    after: int = option(300, "Characters after it.", click.IntRange(0))
    line_tokens: int = option(24, "For a line.", click.IntRange(1))
    body_tokens: int = option(64, "For the body of a block.", click.IntRange(1))
    humaneval: Path | None = option(None, "HumanEval-SingleLineInfilling.jsonl.gz, a second set.", EXISTING_FILE)
    humaneval_cursors: int = option(100, "In that set.", click.IntRange(1))
    answers: Path | None = option(None, "Write cursors and answers into this file of JSON lines.", FILE)
    again: Path | None = option(None, "Measure the answers of such a file, of the same cursors, again.", EXISTING_FILE)
    show: int = option(0, "Print as many cursors, each with all answers.", click.IntRange(0))


@benchmark(_Options, OfflineEngineError)
def main(options: _Options, console: Console) -> Result:
    """Measure what a model writes at cursors of real files. The last line is a JSON object.

    The files are those that the lock files install, for Python and in editors/node_modules. The plain prompt is the one
    that plugins send to an engine. The measures are explained in loadtest/bench/quality/measures.py.

    \b
    Example:
        python -m loadtest.bench.quality --model MODEL --cursors 100 --contestant plain \\
            --contestant server --contestant "server, typed line: prompt.template_fields.lines_behind=1" --show 20
    """
    servers = _servers(options)
    cursors = file_cursors(options.cursors, options.seed)
    if options.humaneval:
        cursors += humaneval_cursors(options.humaneval, options.humaneval_cursors, options.seed)
    answers = _read(options.again, cursors) if options.again else _ask_all(options, servers, cursors, console)
    if HEALED in answers:
        answers = {**answers, RULED: ruled(cursors, answers[HEALED])}
    if options.answers:
        write_text(options.answers, "".join(f"{line}\n" for line in _lines(options, cursors, answers)))
    scores = Scores(cursors, answers, options.seed)
    found = {"model": options.model.name, "corpus_digest": corpus_digest(cursors), **figures(scores, PLAIN)}
    return Result(found, [*side_by_side(cursors, answers, options.show), *tables(scores, PLAIN)])


def _read(file: Path, cursors: Sequence[Cursor]) -> Answers:
    """Return the answers that an earlier run wrote.

    Raises ConfigError if they are of other cursors.
    """
    lines = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    if [(each["path"], each["offset"]) for each in lines] != [(each.path, len(each.before)) for each in cursors]:
        raise ConfigError(f"--again {file}: has the answers at other cursors; give --cursors and --seed of its run")
    names = dict.fromkeys(name for each in lines for name in each["answers"])
    return {name: [each["answers"][name] for each in lines] for name in names}


def _servers(options: _Options) -> dict[str, list[str]]:
    """Return the settings of the contestants that are servers, by name.

    Raises ConfigError if there is no such contestant, CommandError if its settings are not valid.
    """
    found = {}
    for contestant in options.contestants:
        name, colon, settings = contestant.partition(":")
        if not colon and name not in CONTESTANTS:
            known = ", ".join(map(repr, CONTESTANTS))
            raise ConfigError(f"contestant {name!r}: unknown; one of {known}, or 'NAME: KEY=VALUE ...'")
        if name not in IN_PROCESS:
            found[name] = server_settings(options.model, [*options.overrides, *settings.split()])
            effective_config(options.config, found[name])
    return found


def _ask_all(
    options: _Options, servers: Mapping[str, Sequence[str]], cursors: Sequence[Cursor], console: Console
) -> Answers:
    """Return the answers of the contestants, those in this process first."""
    budget = Budget(options.before, options.after, options.line_tokens, options.body_tokens)
    plain = [name for name in options.contestants if name in IN_PROCESS]
    found: dict[str, Sequence[str]] = {}
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console) as progress:

        def shown(names: Sequence[str]) -> Callable[[int], None]:
            return partial(progress.advance, progress.add_task(" + ".join(names), total=len(names) * len(cursors)))

        if plain:
            found |= plain_answers(options.model, plain, cursors, budget, shown(plain))
        for name, settings in servers.items():
            found[name] = server_answers(options.config, settings, name, cursors, budget, shown([name]))
    return found


def corpus_digest(cursors: Sequence[Cursor]) -> str:
    """Return a digest of all cursors: files, places and texts. Equal digests mean equal questions."""
    whole = hashlib.sha256()
    for each in cursors:
        whole.update(f"{each.path} {each.digest} {each.kind} {len(each.before)} {len(each.truth)}\n".encode())
    return whole.hexdigest()


def _lines(options: _Options, cursors: Sequence[Cursor], answers: Answers) -> Sequence[str]:
    """Return the JSON lines of the cursors. Each has what the contestants were given, and their answers."""
    found = []
    for place, cursor in enumerate(cursors):
        about = asdict(cursor) | {
            "offset": len(cursor.before),
            "before": cursor.prefix(options.before),
            "after": cursor.suffix(options.after),
            "answers": {name: texts[place] for name, texts in answers.items()},
        }
        found.append(json.dumps(about, ensure_ascii=False))
    return found


if __name__ == "__main__":
    main()

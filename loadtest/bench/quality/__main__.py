"""The command of the benchmark of quality: `python -m loadtest.bench.quality`."""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

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
    plain_answers,
    ruled,
    server_answers,
    server_settings,
)
from loadtest.bench.quality.cursors import Cursor, file_cursors, humaneval_cursors
from loadtest.bench.quality.measures import Answers, Scores, figures
from loadtest.bench.runner.benchmark import (
    COUNT,
    EXISTING_FILE,
    EXISTING_FOLDER,
    FILE,
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
    cursors: int = option(420, "In files; about as many of each language and kind.", COUNT, quick=1)
    seed: int = option(1, "Chooses files and cursors.", int)
    humaneval: Path | None = option(None, "HumanEval-SingleLineInfilling.jsonl.gz, a second set.", EXISTING_FILE)
    humaneval_cursors: int = option(100, "In that set.", COUNT, quick=4)
    answers: Path | None = option(None, "Write cursors and answers into this file of JSON lines.", FILE)


@benchmark(_Options, OfflineEngineError)
def main(options: _Options, console: Console) -> Mapping[str, Any]:
    """Measure what a model writes at cursors of real files. The last line is a JSON object.

    The files are those that the lock files install, for Python and in editors/node_modules. The plain prompt is the one
    that plugins send to an engine. The measures are explained in loadtest/bench/quality/measures.py.

    \b
    Example:
        python -m loadtest.bench.quality --model MODEL --cursors 100 --contestant plain \\
            --contestant server --contestant "server, typed line: prompt.template_fields.lines_behind=1"
    """
    servers = _servers(options)
    cursors = file_cursors(options.cursors, options.seed)
    if options.humaneval:
        cursors += humaneval_cursors(options.humaneval, options.humaneval_cursors, options.seed)
    answers = _ask_all(options, servers, cursors, console)
    if HEALED in answers:
        answers[RULED] = ruled(cursors, answers[HEALED])
    if options.answers:
        write_text(options.answers, "".join(_lines(cursors, answers)))
    scores = Scores(cursors, answers, options.seed)
    return {"model": options.model.name, "corpus_digest": corpus_digest(cursors), **figures(scores, PLAIN)}


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
) -> dict[str, Sequence[str]]:
    """Return the answers of the contestants, those in this process first."""
    plain = [name for name in options.contestants if name in IN_PROCESS]
    found: dict[str, Sequence[str]] = {}
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console) as progress:

        def shown(names: Sequence[str]) -> Callable[[int], None]:
            return partial(progress.advance, progress.add_task(" + ".join(names), total=len(names) * len(cursors)))

        if plain:
            found |= plain_answers(options.model, plain, cursors, shown(plain))
        for name, settings in servers.items():
            found[name] = server_answers(options.config, settings, name, cursors, shown([name]))
    return found


def corpus_digest(cursors: Sequence[Cursor]) -> str:
    """Return a digest of all cursors: files, places and texts. Equal digests mean equal questions."""
    whole = hashlib.sha256()
    for each in cursors:
        whole.update(f"{each.path} {each.digest} {each.kind} {len(each.before)} {len(each.truth)}\n".encode())
    return whole.hexdigest()


def _lines(cursors: Sequence[Cursor], answers: Answers) -> Sequence[str]:
    """Return the JSON lines of the cursors. Each has what the contestants were given, and their answers."""
    found = []
    for place, cursor in enumerate(cursors):
        given = {"offset": len(cursor.before), "before": cursor.prefix, "after": cursor.suffix}
        about = asdict(cursor) | given | {"answers": {name: texts[place] for name, texts in answers.items()}}
        found.append(json.dumps(about, ensure_ascii=False) + "\n")
    return found


if __name__ == "__main__":
    main()

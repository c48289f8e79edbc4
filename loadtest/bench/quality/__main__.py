"""Measures what a model writes at cursors of real files: `python -m loadtest.bench.quality`.

The contestants are this server, called over gRPC, and the plain prompt that plugins send to an engine. All are greedy
and get the same text, cut at whole lines, and the same number of tokens.
"""

import asyncio
import json
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from completion.v1 import completion_pb2 as pb
from completion_client import CompletionClient, ServiceError
from completion_server.core.errors import ConfigError
from completion_server.engine.vllm.offline import OfflineEngineError, offline_engine
from completion_server.text.prompt.loading import choose_template
from completion_server.text.prompt.templates import FimOrder, Template
from loadtest import LoadTestError
from loadtest.bench.quality.cursors import BODY, Cursor, corpus_digest, file_cursors
from loadtest.bench.quality.measures import Answers, Scores, figures
from loadtest.bench.runner.benchmark import (
    COUNT,
    EXISTING_FOLDER,
    FILE,
    ServerOptions,
    benchmark,
    option,
    write_text,
)
from loadtest.bench.runner.server import SERVES_ALL, ServerProcess, effective_config

PLAIN, SERVER = "plain", "server"
CONTESTANTS = (PLAIN, SERVER)
"""A further configuration of the server is one more line: "server, NAME: SECTION.KEY=VALUE SECTION.KEY=VALUE"."""
_LINE_TOKENS, _BODY_TOKENS = 24, 64
_BATCH = 16
_CONTEXT = 4096
_REQUEST_S = 600.0
_SERVES_SLOWLY = (
    *SERVES_ALL,
    "engine.draft_model=",
    "engine.num_speculative_tokens=0",
    "speculation.mode=fixed",
    "engine.enforce_eager=true",
    f"engine.max_num_seqs={_BATCH}",
    f"scheduling.max_slots={_BATCH}",
    "engine.hang_timeout_s=600",
    "shed.budget_ms=600000",
    "shed.lag_ms=0",
    f"limits.max_deadline_s={_REQUEST_S:.0f}",
)
"""Settings for a model that is large for its machine: no request is given up, and the start takes seconds."""


class NotAnsweredError(LoadTestError):
    """The server ended a request without an answer."""


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
    answers: dict[str, Sequence[str]] = {}
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console) as progress:
        for name in options.contestants:
            own = name.partition(":")[0]
            advance = partial(progress.advance, progress.add_task(own, total=len(cursors)))
            if own == PLAIN:
                answers[own] = plain_answers(options.model, cursors, advance)
            else:
                answers[own] = asyncio.run(_server_answers(options.config, servers[own], own, cursors, advance))
    if options.answers:
        write_text(options.answers, "".join(_lines(cursors, answers)))
    scores = Scores(cursors, answers, options.seed)
    return {"model": options.model.name, "corpus_digest": corpus_digest(cursors), **figures(scores)}


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
        if name != PLAIN:
            model = [f"engine.model={options.model.resolve()}", f"engine.max_model_len={_context(options.model)}"]
            found[name] = [*model, *_SERVES_SLOWLY, *options.overrides, *settings.split()]
            effective_config(options.config, found[name])
    return found


def _context(model: Path) -> int:
    """Return the number of tokens of a prompt and its answer for which an engine makes room."""
    longest = json.loads((model / "config.json").read_text(encoding="utf-8"))["max_position_embeddings"]
    return min(_CONTEXT, int(longest))


def _num_tokens(cursor: Cursor) -> int:
    return _BODY_TOKENS if cursor.kind == BODY else _LINE_TOKENS


def plain_answers(model: Path, cursors: Sequence[Cursor], advance: Callable[[int], None]) -> list[str]:
    """Return the answers to the plain prompt, from an engine in this process.

    A line ends at its first newline, as plugins ask for with a stop string.
    """
    from vllm.sampling_params import SamplingParams  # imported late: it takes seconds

    answers: list[str] = []
    with offline_engine(model, {"max_model_len": _context(model), "max_num_seqs": _BATCH}) as llm:
        tokenizer = llm.get_tokenizer()
        template, ends = (
            choose_template(tokenizer.get_vocab(), str(model)),
            sorted(tokenizer.get_added_vocab().values()),
        )
        for start in range(0, len(cursors), _BATCH):
            batch = cursors[start : start + _BATCH]
            sampling = [
                SamplingParams(
                    temperature=0.0,
                    max_tokens=_num_tokens(cursor),
                    stop=None if cursor.kind == BODY else ["\n"],
                    stop_token_ids=ends,
                )
                for cursor in batch
            ]
            prompts = [plain_prompt(template, cursor.prefix, cursor.suffix) for cursor in batch]
            answers += [each.outputs[0].text for each in llm.generate(prompts, sampling, use_tqdm=False)]
            advance(len(batch))
    return answers


def plain_prompt(template: Template, before: str, after: str) -> str:
    """Return the prompt of a plugin that knows the family's markers: all text before, all after, and the marker."""
    if template.order is FimOrder.PREFIX_ONLY:
        return before
    parts = [template.prefix + before, template.suffix + after]
    return "".join(parts[::-1] if template.order is FimOrder.SUFFIX_FIRST else parts) + template.middle


async def _server_answers(
    config: Path, settings: Sequence[str], name: str, cursors: Sequence[Cursor], advance: Callable[[int], None]
) -> list[str]:
    """Return what this server shows at each cursor, in one configuration; it is started and stopped.

    Raises NotAnsweredError if a request has no answer, StartError if the server does not start.
    """
    callers, run = asyncio.Semaphore(_BATCH), uuid.uuid4().hex[:8]
    async with ServerProcess(config, settings, name.replace("/", "-")) as server:

        async def ask(number: int, cursor: Cursor) -> str:
            user = f"{run}-{number}"
            async with callers, CompletionClient(server.ready["address"], user=user) as client:
                text = await _ask(client, cursor, user)
            advance(1)
            return text

        return await asyncio.gather(*(ask(number, cursor) for number, cursor in enumerate(cursors)))


async def _ask(client: CompletionClient, cursor: Cursor, user: str) -> str:
    request = pb.CompleteRequest(
        document_uri=f"file:///{user}/{cursor.path}",
        language_id=cursor.language,
        prefix=cursor.prefix,
        suffix=cursor.suffix,
        trigger=pb.TRIGGER_EXPLICIT,
        mode=pb.MODE_MULTI_LINE if cursor.kind == BODY else pb.MODE_SINGLE_LINE,
        max_tokens=_num_tokens(cursor),
        temperature=0.0,
        without_completion_cache=True,
    )
    try:
        found = await client.complete(request, timeout_s=_REQUEST_S)
    except ServiceError as error:
        raise NotAnsweredError(f"{cursor.path}: {error}") from error
    if found.finish_reason not in {"stop", "length"}:
        raise NotAnsweredError(f"{cursor.path}: no answer: {found.end}")
    return found.text


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

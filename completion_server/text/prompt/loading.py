"""Loads the prompt builder of a model, in the template that its special tokens or the configuration choose."""

import difflib
import logging
from collections.abc import Collection, Mapping
from dataclasses import fields, replace
from typing import Any

from completion_server.core.errors import ConfigError
from completion_server.core.model_files import load_tokenizer
from completion_server.text.prompt.builder import PromptBuilder
from completion_server.text.prompt.edits.builder import EditPrompts
from completion_server.text.prompt.edits.choice import choose_edit_template, has_markers
from completion_server.text.prompt.settings import PromptSettings
from completion_server.text.prompt.templates import ALL_LINES, FAMILIES, PREFIX_ONLY, FimOrder, PathAt, Template

_LOG = logging.getLogger(__name__)
_REPLACEABLE = ("order", "prefix", "suffix", "middle", "file", "path_at", "text_header", "lines_behind")
_ALL = "all"


def detect_template(vocabulary: Collection[str], model: str = "") -> Template:
    """Return the family whose markers are in the vocabulary; without one, log a warning and return prefix-only.

    `model` is the model's name or path. It decides only between families that share all their markers.
    """
    candidates = [family for family in FAMILIES if _has_markers(family, vocabulary)]
    for family in candidates:
        if family.name_hint and family.name_hint in model.lower():
            return family
    for family in candidates:
        if not any(token in vocabulary for token in family.lacks):
            return family
    _LOG.warning(
        "the tokenizer of %s has no fill-in-the-middle tokens of a known family: completing from the text before "
        "the cursor only",
        model or "the model",
    )
    return PREFIX_ONLY


def choose_template(
    vocabulary: Collection[str], model: str, name: str = "", replaced: Mapping[str, str | int] | None = None
) -> Template:
    """Return the template called `name`, or the detected one if `name` is "", with `replaced` fields.

    Raises:
        ConfigError: no such template or field, or a marker that is not in the vocabulary.

    """
    template = _by_name(name) if name else detect_template(vocabulary, model)
    if replaced:
        template = _replace_fields(template, replaced)
    if template.order is not FimOrder.PREFIX_ONLY and not (template.prefix and template.suffix):
        msg = f"prompt template {template.name}: needs both a prefix and a suffix marker"
        raise ConfigError(msg)
    missing = [marker for marker in template.markers if marker not in vocabulary]
    if missing:
        msg = f"prompt template {template.name}: the tokenizer has no {', '.join(missing)}"
        raise ConfigError(msg)
    return template


def _has_markers(family: Template, vocabulary: Collection[str]) -> bool:
    return all(token in vocabulary for token in (*family.markers, *family.needs))


def _by_name(name: str) -> Template:
    known = {family.name: family for family in (*FAMILIES, PREFIX_ONLY)}
    if name not in known:
        msg = f"prompt template {name!r}: unknown; {_nearest(name, list(known))}"
        raise ConfigError(msg)
    return known[name]


def _replace_fields(template: Template, replaced: Mapping[str, str | int]) -> Template:
    changes: dict[str, Any] = {}
    for key, value in replaced.items():
        if key not in _REPLACEABLE:
            msg = f"prompt template field {key!r}: unknown; {_nearest(key, list(_REPLACEABLE))}"
            raise ConfigError(msg)
        changes[key] = _parse(key, str(value))
    assert set(_REPLACEABLE) <= {item.name for item in fields(Template)}
    return replace(template, **changes)


def _parse(key: str, value: str) -> FimOrder | PathAt | int | str:
    if key == "lines_behind":
        if value != _ALL and not value.isdecimal():
            msg = f'prompt template field lines_behind: must be "{_ALL}" or a number of lines, got {value!r}'
            raise ConfigError(msg)
        return ALL_LINES if value == _ALL else min(ALL_LINES, int(value))
    if key not in {"order", "path_at"}:
        return value
    kind: type[FimOrder] | type[PathAt] = FimOrder if key == "order" else PathAt
    try:
        return kind(value)
    except ValueError:
        msg = f"prompt template field {key}: must be one of {', '.join(item.value for item in kind)}, got {value!r}"
        raise ConfigError(msg) from None


def _nearest(name: str, known: list[str]) -> str:
    near = difflib.get_close_matches(name, known, 1)
    return f"did you mean {near[0]!r}?" if near else f"there are: {', '.join(sorted(known))}"


def load_prompt_builder(
    model: str,
    *,
    revision: str | None = None,
    template: str | Mapping[str, str] | None = None,
    max_prompt_tokens: int,
    settings: PromptSettings | None = None,
) -> PromptBuilder:
    """Load the tokenizer of `model`, a folder or a name on the hub, and choose its template.

    `template` overrides the settings: a family's name, or a mapping of fields to replace. The family stands under
    "name" in the mapping; without a name it is detected.

    Raises:
        ConfigError: there is no tokenizer, it can't be used, or the template does not go with it.

    """
    settings = settings or PromptSettings()
    if isinstance(template, str):
        settings = replace(settings, template=template)
    elif template is not None:
        fields = dict(template)
        settings = replace(settings, template=fields.pop("name", settings.template), template_fields=fields)
    tokenizer = load_tokenizer(model, revision)
    vocabulary = tokenizer.get_vocab()
    chosen = choose_template(vocabulary, model, settings.template, settings.template_fields)
    return PromptBuilder(tokenizer, chosen, max_prompt_tokens=max_prompt_tokens, settings=settings)


def load_edit_prompts(
    model: str, *, revision: str | None = None, max_prompt_tokens: int, settings: PromptSettings
) -> EditPrompts | None:
    """Load the tokenizer of a model that writes next edits, and prepare its template; None for any other model.

    Raises:
        ConfigError: there is no tokenizer, it can't be used, or it lacks a marker of the template that the settings
            name.

    """
    template = choose_edit_template(model, settings)
    if template is None:
        return None
    tokenizer = load_tokenizer(model, revision)
    if not has_markers(template, tokenizer.get_vocab(), is_named=bool(settings.next_edit_template)):
        return None
    return EditPrompts(tokenizer, template, max_prompt_tokens=max_prompt_tokens)

"""Chooses the template of a model that writes next edits."""

import difflib
import logging
from collections.abc import Collection
from pathlib import Path

from completion_server.core.errors import ConfigError
from completion_server.text.prompt.edits.instinct import Instinct
from completion_server.text.prompt.edits.sweep import Sweep
from completion_server.text.prompt.edits.template import EditTemplate
from completion_server.text.prompt.edits.zeta import Zeta2, Zeta21
from completion_server.text.prompt.settings import PromptSettings

logger = logging.getLogger(__name__)


def choose_edit_template(model: str, settings: PromptSettings) -> EditTemplate | None:
    """Return the template that the settings name, or the one that a model's name tells; None if it tells none.

    Raises:
        ConfigError: there is no template of this name.

    """
    templates: list[EditTemplate] = [Zeta21(), Zeta2(), Sweep(), Instinct(settings.next_edit_instructions)]
    if not settings.next_edit_template:
        name = Path(model).name.lower()
        return next((each for each in templates if any(hint in name for hint in each.hints)), None)
    known = {each.name: each for each in templates}
    if settings.next_edit_template not in known:
        near = difflib.get_close_matches(settings.next_edit_template, known, 1)
        hint = f"did you mean {near[0]!r}?" if near else f"there are: {', '.join(sorted(known))}"
        msg = f"prompt.next_edit_template {settings.next_edit_template!r}: unknown; {hint}"
        raise ConfigError(msg)
    return known[settings.next_edit_template]


def has_markers(template: EditTemplate, vocabulary: Collection[str], *, is_named: bool) -> bool:
    """Return whether the vocabulary has the template's markers; if not, a template of a hint is given up.

    Raises:
        ConfigError: the settings name the template.

    """
    missing = ", ".join(marker for marker in template.markers if marker not in vocabulary)
    if missing and is_named:
        msg = f"prompt.next_edit_template {template.name}: the tokenizer has no {missing}"
        raise ConfigError(msg)
    if missing:
        logger.warning("no next edits: the model is called as one of %s, but has no %s", template.name, missing)
    return not missing

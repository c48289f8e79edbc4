"""Makes the server's prompts in this process, with the server's own prompt library."""

import time
from collections.abc import Mapping
from typing import Any

from completion_server.core.errors import ConfigError
from completion_server.core.request import Caller, Mode, Request
from completion_server.prompt.builder import Prompt, PromptBuilder
from completion_server.prompt.loading import load_prompt_builder
from completion_server.prompt.settings import PromptSettings


class PromptMaker:
    """Builds the prompts of keys typed into documents, as the server would.

    The layout of a prompt depends on the document's last one, so keys must come in the order in which they are typed.
    """

    def __init__(self, model: str, section: Mapping[str, Any]) -> None:
        """Load the tokenizer of `model`; `section` is the server's `[prompt]` section.

        Raises:
            ConfigError: there is no such tokenizer, or the section can't be used.

        """
        try:
            settings = PromptSettings(**section)
        except (TypeError, ValueError) as error:
            raise ConfigError(str(error)) from error
        self.builder: PromptBuilder = load_prompt_builder(
            model, max_prompt_tokens=settings.max_prompt_tokens, settings=settings
        )
        self._num_made = 0

    def make(
        self,
        document: str,
        prefix: str,
        suffix: str,
        *,
        session: str = "",
        language_id: str = "",
        mode: Mode = Mode.SINGLE_LINE,
    ) -> tuple[Prompt, float]:
        """Return the prompt of the next key in `document`, and the milliseconds that building it took.

        Raises:
            InvalidRequestError: the text can't be made into a prompt.

        """
        self._num_made += 1
        request = Request(
            id=f"prompt-{self._num_made}",
            caller=Caller(user="benchmark", session=session or document),
            sequence=self._num_made,
            document_uri=document,
            language_id=language_id,
            prefix=prefix,
            suffix=suffix,
            max_tokens=1,
            received_at=0.0,
            mode=mode,
        )
        begun = time.perf_counter()
        prompt = self.builder.build(request)
        return prompt, (time.perf_counter() - begun) * 1000

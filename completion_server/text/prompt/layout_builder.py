"""Builds the layout of a request: keeps the document's last layout if it still fits, or makes a new one.

A layout that is kept has the same window, suffix end and snippets, so its tokens are the same up to the text being
typed. Once it does not fit any more, all parts are chosen anew at the same time, with room to grow.
"""

from dataclasses import dataclass, field

from completion_server.core.errors import InvalidRequestError
from completion_server.core.request import Request
from completion_server.text.prompt.layout import CHARACTERS_A_TOKEN, Layout, LayoutContext, LayoutSpan
from completion_server.text.prompt.snippets import NOTHING, Rendered, source
from completion_server.text.prompt.templates import FimOrder
from completion_server.text.prompt.tokens.reuse import EMPTY, Encoded
from completion_server.text.prompt.window import (
    HEAD_CHARACTERS,
    SentText,
    choose_start,
    cut_to_lines,
    find_end,
    first_lines,
    first_sent,
    last_lines,
)

_MOST_CHARACTERS_A_TOKEN = 16
_STARVED_SHARE = 0.5
"""A window with less than this share of the tokens that it had at first is laid out anew: the cursor went up."""
_KEPT_SUFFIX_SHARE = 0.7
"""A suffix shorter than this share of its budget is cut anew: the cursor went down."""
SUFFIX_SHARE = 0.25
"""Largest share of a prompt's budget for the text right of the cursor."""
WINDOW_STEP = 0.2
"""A window moves by one to two of these shares of the budget for the text left of the cursor."""
SNIPPET_MAX_AGE_S = 30.0
"""Changed snippets replace those in the prompt after this long, or when the window moves."""
_SNIPPET_GRID_TOKENS = 32
"""The snippets' budget is rounded down to a multiple of this, so that it rarely changes with the line's length."""


@dataclass(slots=True)
class LayoutBuilder:
    """Builds the layout of one request; used once."""

    context: LayoutContext
    request: Request
    prefix: str
    """The request's prefix, less the end that the prompt leaves out."""
    old: Layout | None
    num_tokenised: int = 0
    _line_start: int = field(init=False)
    _typed: Encoded = field(init=False)
    _found: int | None = field(init=False)
    """Where the old layout's window starts in the request's prefix."""
    _sent: SentText = field(init=False)

    def __post_init__(self) -> None:
        """Find the cursor's line and the old window."""
        old, prefix = self.old, self.prefix
        self._line_start = prefix.rfind("\n") + 1
        self._typed = old.typed if old else EMPTY
        self._found = old.find_window(prefix, self.context.budget * _MOST_CHARACTERS_A_TOKEN) if old else None
        self._sent = old.sent_next(prefix, self._found) if old else first_sent(prefix)

    def build(self) -> Layout:
        """Return the old layout with the new text if it still fits, or a new one.

        Raises:
            InvalidRequestError: the cursor's line alone does not fit.

        """
        kept = self._keep(self.old) if self.old else None
        return kept or self._lay_out_anew()

    def _encode(self, text: str, previous: Encoded = EMPTY) -> Encoded:
        encoded, num_computed = self.context.encoder.encode(text, previous)
        self.num_tokenised += num_computed
        return encoded

    def _encode_typed(self, start: int, lead: str = "") -> Encoded:
        self._typed = self._encode(lead + self.prefix[start:], self._typed)
        return self._typed

    # Keeping the old layout

    def _keep(self, old: Layout) -> Layout | None:
        prefix, budget, start = self.prefix, self.context.budget, self._found
        if start is None or start > self._line_start or self._is_stale(old):
            return None
        if len(prefix) - start > 2 * budget * old.characters_a_token:
            return None
        span = LayoutSpan(start, self._split(old, start), old.span.suffix_budget, old.span.snippet_budget)
        layout = self._compose(span, old.prefix, self._keep_suffix(old), old.snippets, old)
        num_left = len(layout.prefix.ids) + len(layout.typed.ids)
        is_starved = start > 0 and num_left < old.num_laid_out * _STARVED_SHARE
        return None if is_starved or layout.num_tokens > budget else layout

    def _is_stale(self, old: Layout) -> bool:
        """Return whether the old layout must be replaced even if it still fits."""
        request, context = self.request, self.context
        if old.span.start == 0 and self._sent.is_clipped and not old.sent.begins_like(self.prefix):
            return True
        if old.span.suffix_budget < int(context.budget * SUFFIX_SHARE) and self._is_line_short():
            return True
        if hash(request.snippets) == old.offered:
            return False
        age_s = request.received_at - old.laid_out_at
        return age_s >= SNIPPET_MAX_AGE_S or not self._still_offers(old.snippets)

    def _still_offers(self, snippets: Rendered) -> bool:
        """Return whether the request has a snippet of each source in `snippets`.

        Text that the editor no longer offers, such as that of a closed file, must not stay in the prompt.
        """
        return snippets.sources <= {source(snippet) for snippet in self.request.snippets}

    def _is_line_short(self) -> bool:
        """Return whether the cursor's line leaves the suffix its room, even at one token for each byte of UTF-8."""
        num_bytes = 4 * (len(self.prefix) - self._line_start + len(self.context.opening))
        return num_bytes <= self.context.budget * self.context.settings.snippet_share

    def _split(self, old: Layout, start: int) -> int:
        """Return where the text behind the middle marker starts: at its old place, or where it starts anew."""
        anew, prefix = self._new_split(start), self.prefix
        split = old.span.split + start - old.span.start
        if not start <= split < anew or old.prefix.text != self._lead(old.snippets) + prefix[start:split]:
            return anew
        return split if prefix.count("\n", split) < self.context.template.lines_behind else anew

    def _keep_suffix(self, old: Layout) -> Encoded:
        """Return the suffix with its old end in the document; with a new end if it would be too long or too short."""
        if self.context.template.order is FimOrder.PREFIX_ONLY:
            return EMPTY
        suffix = self.request.suffix
        shown, budget = old.suffix.text, old.span.suffix_budget
        if old.suffix_left and shown and suffix.startswith(shown):
            return old.suffix
        if suffix and len(suffix) < len(shown) and shown.startswith(suffix):  # its end moves: the client clips it
            return self._cut_suffix(budget, int(len(suffix) * (1 - WINDOW_STEP)))
        end = find_end(suffix, shown, old.suffix_left, 2 * budget * CHARACTERS_A_TOKEN)
        if end is not None:
            encoded = self._encode(suffix[:end], old.suffix)
            least = 0 if end == len(suffix) else budget * _KEPT_SUFFIX_SHARE
            if least <= len(encoded.ids) <= budget:
                return encoded
        return self._cut_suffix(budget)

    # Making a new layout

    def _lay_out_anew(self) -> Layout:
        room = self.context.budget - self._count_line()
        shown_from, above = self._read_above(room)
        settings, budget = self.context.settings, self.context.budget
        for_above = min(len(above.ids), int(budget * (1 - SUFFIX_SHARE - settings.snippet_share)))
        suffix_budget = max(0, min(int(budget * SUFFIX_SHARE), room - for_above))
        suffix = self._cut_suffix(suffix_budget)
        snippet_budget = min(int(budget * settings.snippet_share), room - for_above - len(suffix.ids))
        snippet_budget = max(0, snippet_budget) // _SNIPPET_GRID_TOKENS * _SNIPPET_GRID_TOKENS
        snippets = self._render(snippet_budget)
        left = room - len(suffix.ids) - snippets.num_tokens
        while True:
            start = shown_from + choose_start(above, left, WINDOW_STEP, is_sliding=self._sent.is_clipped)
            span = LayoutSpan(start, self._new_split(start), suffix_budget, snippet_budget)
            layout = self._compose(span, above, suffix, snippets, None)
            excess = layout.num_tokens - budget
            if excess <= 0:
                return layout
            if start < self._line_start:
                left -= excess
            elif snippets is not NOTHING:
                snippets = NOTHING
            elif suffix is not EMPTY:
                suffix = EMPTY
            else:
                raise self._refusal(f"{budget + excess} tokens")

    def _count_line(self) -> int:
        """Return the tokens of the cursor's line and the opening; refuse a line that does not fit."""
        line, budget = self.prefix[self._line_start :], self.context.budget
        if len(line) > budget * self.context.longest_token:
            raise self._refusal(f"{len(line)} characters")
        end = line[-budget * _MOST_CHARACTERS_A_TOKEN :]
        if len(end) < len(line) and len(self._encode(end).ids) > budget:  # before all of a huge line is tokenised
            raise self._refusal(f"{len(line)} characters")
        template = self.context.template
        if template.has_typed and not template.is_all_typed:
            num_tokens = len(self._encode_typed(self._line_start).ids) + len(self._encode(self.context.opening).ids)
        else:
            num_tokens = len(self._encode(self.context.opening + line).ids)
        if num_tokens > budget:
            raise self._refusal(f"{num_tokens} tokens")
        return num_tokens

    def _refusal(self, given: str) -> InvalidRequestError:
        limit = self.context.budget
        return InvalidRequestError("prefix", f"the cursor's line up to it may have {limit} tokens, and has {given}")

    def _read_above(self, room: int) -> tuple[int, Encoded]:
        """Return the offset and tokens of the text above the cursor's line, as far up as `room` tokens reach."""
        reach = room * CHARACTERS_A_TOKEN
        above = self.old.prefix if self.old else EMPTY
        while True:
            shown_from = last_lines(self.prefix, self._line_start, reach)
            above = self._encode(self.prefix[shown_from : self._line_start], above)
            if shown_from == 0 or len(above.ids) >= room or reach >= room * _MOST_CHARACTERS_A_TOKEN:
                return shown_from, above
            reach += reach // 2

    def _cut_suffix(self, budget: int, most_characters: int | None = None) -> Encoded:
        """Return the start of the suffix in at most `budget` tokens; whole lines, unless the first is too long."""
        if budget <= 0 or self.context.template.order is FimOrder.PREFIX_ONLY:
            return EMPTY
        suffix = self.request.suffix
        suffix = suffix if most_characters is None else first_lines(suffix, most_characters)
        reach = budget * CHARACTERS_A_TOKEN
        shown = self.old.suffix if self.old else EMPTY
        while True:
            shown = self._encode(first_lines(suffix, reach), shown)
            is_read = len(shown.text) == len(suffix) or len(shown.ids) >= budget
            if is_read or reach >= budget * _MOST_CHARACTERS_A_TOKEN:
                break
            reach += reach // 2
        most = budget
        while len(shown.ids) > budget:
            shown = self._encode(shown.text[: cut_to_lines(shown, most)], shown)
            most = max(0, most - max(0, len(shown.ids) - budget))
        return shown

    def _render(self, budget: int) -> Rendered:
        request, old = self.request, self.old
        if budget <= 0 or not request.snippets:
            return NOTHING
        if old and old.span.snippet_budget == budget and old.offered == hash(request.snippets):
            return old.snippets
        return self.context.renderer.render(
            request.snippets, request.document_uri, request.language_id, budget, self._encode
        )

    def _new_split(self, start: int) -> int:
        template = self.context.template
        if not template.has_typed:
            return len(self.prefix)
        return start if template.is_all_typed else self._line_start

    # Composing

    def _lead(self, snippets: Rendered) -> str:
        return self.context.opening + snippets.lead

    def _compose(
        self, span: LayoutSpan, above: Encoded, suffix: Encoded, snippets: Rendered, kept: Layout | None
    ) -> Layout:
        """Tokenise the remaining parts, reusing tokens of `above`, and compose the layout."""
        request, lead = self.request, self._lead(snippets)
        if self.context.template.is_all_typed:
            prefix, typed = EMPTY, self._encode_typed(span.start, lead)
        else:
            prefix = self._encode(lead + self.prefix[span.start : span.split], above)
            typed = self._encode_typed(span.split)
        return Layout(
            prefix=prefix,
            suffix=suffix,
            typed=typed,
            snippets=snippets,
            span=span,
            num_lead=len(lead),
            head=self.prefix[span.start : span.start + HEAD_CHARACTERS],
            sent=self._sent,
            suffix_left=len(request.suffix) - len(suffix.text),
            offered=kept.offered if kept else hash(request.snippets),
            laid_out_at=kept.laid_out_at if kept else request.received_at,
            num_laid_out=kept.num_laid_out if kept else len(prefix.ids) + len(typed.ids),
        )

"""The tables of a scenario file, each with its defaults and limits."""

from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from loadtest.traffic.typist import LogNormal, TypingModel

Share = Annotated[float, Field(ge=0, le=1)]
ShareAboveZero = Annotated[float, Field(gt=0, le=1)]
ShareBelowOne = Annotated[float, Field(ge=0, lt=1)]
Positive = Annotated[float, Field(gt=0)]
NotNegative = Annotated[float, Field(ge=0)]
Count = Annotated[int, Field(ge=0)]
AtLeastOne = Annotated[int, Field(ge=1)]

_TYPIST = TypingModel()


class Settings(BaseModel):
    """A table of the file; frozen, and an unknown key is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class TypingSettings(Settings):
    """The typing model; see TypingModel."""

    key_gap_median_s: Positive = _TYPIST.key_gap.median_s
    key_gap_sigma: Positive = _TYPIST.key_gap.sigma
    keys_per_burst: Annotated[float, Field(ge=1)] = _TYPIST.keys_per_burst
    word_pause_median_s: Positive = _TYPIST.word_pause.median_s
    word_pause_sigma: Positive = _TYPIST.word_pause.sigma
    micro_pause_median_s: Positive = _TYPIST.micro_pause.median_s
    micro_pause_sigma: Positive = _TYPIST.micro_pause.sigma
    micro_pause_share: Share = _TYPIST.micro_pause_share
    away_median_s: Positive = _TYPIST.away.median_s
    away_sigma: Positive = _TYPIST.away.sigma
    away_share: ShareBelowOne = _TYPIST.away_share
    idle_share: ShareBelowOne = 0.0
    """Share of sessions that are open and never type."""
    debounce_ms: NotNegative = 50.0
    """Time without a key after which an editor sends a request."""
    pause_ms: Positive = 500.0
    """A user who types no key for this long waits for an answer."""

    @property
    def model(self) -> TypingModel:
        """The typist."""
        return TypingModel(
            key_gap=LogNormal(self.key_gap_median_s, self.key_gap_sigma),
            keys_per_burst=self.keys_per_burst,
            word_pause=LogNormal(self.word_pause_median_s, self.word_pause_sigma),
            micro_pause=LogNormal(self.micro_pause_median_s, self.micro_pause_sigma),
            micro_pause_share=self.micro_pause_share,
            away=LogNormal(self.away_median_s, self.away_sigma),
            away_share=self.away_share,
        )


class DocumentSettings(Settings):
    """The documents that are typed."""

    source: Annotated[str, Field(min_length=1)] = "stdlib"
    """"stdlib", the running Python's library, or a folder."""
    pattern: Annotated[str, Field(min_length=1)] = "*.py"
    """Pattern of the names of a folder's files."""
    language: str = "python"
    prefix_chars: Count = 1500
    """Text before the cursor when a session begins; typed text is added."""
    suffix_chars: Count = 400


class EditorSettings(Settings):
    """The behaviour of the editors."""

    cancels_at_key: bool = True
    """Whether a request is cancelled at the next key; if not, the next request supersedes it, a debounce later."""
    prefetch_share: Share = 0.0
    """Share of the keys at which an editor also sends a prefetch, ahead of the debounce."""
    explicit_share: Share = 0.0
    """Share of the pauses in which the user asks for a completion by a shortcut."""
    cache_entries: Count = 8
    """Recent completions that an editor keeps; text typed along them is answered without a request."""
    mode: Literal["single_line", "multi_line", "next_edit"] = "multi_line"
    """The extent of a completion, or the next edit instead of one, which only a `grpc` target answers."""
    max_tokens: AtLeastOne = 24
    lead_in: bool = False
    """Whether each document is shown to the target once before the run."""
    deadline_ms: NotNegative = 0.0
    """Deadline of each request; 0 sets none."""
    traced_share: Share = 0.0
    """Share of the requests to a `grpc` target that begin a trace and ask the server to record it."""


class ShapeSettings(Settings):
    """The share of the sessions that type, over time."""

    kind: Literal["steady", "ramp", "spike", "day"] = "steady"
    from_share: ShareAboveZero = 0.05
    """Share at the start of a ramp; minimum of a day."""
    to_share: ShareAboveZero = 1.0
    """Share at the end of a ramp; peak of a day."""
    at_s: NotNegative = 0.0
    """Start of a ramp or a spike."""
    for_s: NotNegative = 0.0
    """Duration of the ramp or spike; 0 lasts to the end."""
    factor: Annotated[float, Field(ge=1)] = 10.0
    """Ratio of the sessions that type in a spike, which are all, to those outside it."""
    period_s: NotNegative = 0.0
    """Length of a day; 0 is the length of the run."""


class EventSettings(Settings):
    """An event that breaks streams."""

    kind: Literal["reconnect", "region_loss"]
    at_s: NotNegative
    region: str = ""
    """Region whose streams break; "" is all, for `reconnect` only."""
    for_s: NotNegative = 0.0
    """Duration of a region loss; 0 lasts to the end."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.kind == "region_loss" and not self.region:
            raise ValueError("region: must be named where a region is lost")
        return self


class RegionShare(Settings):
    """A region with its share of the sessions; host i of a target serves region i."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]+$")]
    share: ShareAboveZero


class AbuserSettings(Settings):
    """Additional users who send requests at a fixed rate, regardless of the answers."""

    count: Count = 0
    requests_per_s: Annotated[float, Field(gt=0, le=100_000)] = 1000.0
    """Rate of each abuser."""


class SlowReaderSettings(Settings):
    """Sessions that pause between two reads of their stream."""

    share: Share = 0.0
    pause_ms: Positive = 200.0


class CriteriaSettings(Settings):
    """The criteria of a good completion."""

    within_ms: Positive = 250.0
    """A completion is seen if its first text comes within this of the intended time ..."""
    before_next_key_ms: NotNegative = 200.0
    """... and stands for this long before the user's next key."""
    slo_ttft_ms: Positive = 200.0
    slo_total_ms: Positive = 1000.0
    accepts_min_chars: AtLeastOne = 3
    """A user accepts a completion that agrees with the next typed text for at least this many characters."""
    gpu_hour_usd: NotNegative = 0.0
    num_gpus: AtLeastOne = 1

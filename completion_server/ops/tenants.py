"""Metrics by tenant, for the tenants that the configuration names: the number of series must have a bound."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

from completion_server.core.events import RequestEnded
from completion_server.core.outcome import FinishReason
from completion_server.ops.families import Histogram, Values

OTHER_TENANT = "other"
"""Stands for all tenants that are not configured."""
_MAX_TENANTS = 64
_MAX_NAME = 64

_BUCKETS_S = (0.025, 0.05, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0)
_KINDS = ("prompt", "cached_prompt", "completion")


@dataclass(frozen=True, slots=True)
class MetricsSettings:
    """The `[metrics]` section."""

    tenants: tuple[str, ...] = ()
    """Tenants with metrics of their own, at most 64; all others, and names that nothing trusted vouches for
    (`admission.trust_user_names`), count as "other". Empty: no metrics by tenant."""

    def __post_init__(self) -> None:
        """Check the names: each is the value of a label in some 40 series."""
        if len(self.tenants) > _MAX_TENANTS:
            msg = f"tenants: at most {_MAX_TENANTS} names, got {len(self.tenants)}"
            raise ValueError(msg)
        for name in self.tenants:
            if not 0 < len(name) <= _MAX_NAME or not name.isprintable():
                msg = f"tenants: a name must be 1 to {_MAX_NAME} printable characters, got {name!r}"
                raise ValueError(msg)
            if name == OTHER_TENANT or self.tenants.count(name) > 1:
                why = "stands for all others" if name == OTHER_TENANT else "is there twice"
                msg = f"tenants: {name!r} {why}"
                raise ValueError(msg)


class TenantMetrics:
    """Counts the requests and tokens of each configured tenant, and of all others together."""

    def __init__(self, tenants: Sequence[str]) -> None:
        """Without tenants there are no metrics."""
        self._tenants = frozenset(tenants)
        requests = "Ended requests of configured tenants, by outcome."
        self._requests = Values("counter", "tenant_requests", requests, "tenant", "outcome")
        ttft = "From a request's receipt to its first token, of answers with text, by configured tenant."
        self._ttft = Histogram("tenant_ttft", ttft, "tenant", buckets_s=_BUCKETS_S)
        tokens = "Tokens computed for configured tenants, by kind."
        self._tokens = Values("counter", "tenant_tokens", tokens, "tenant", "kind")
        self.families = (self._requests, self._ttft, self._tokens) if tenants else ()
        names = (*tenants, OTHER_TENANT)
        self._requests.create((name, reason.value) for name in names for reason in FinishReason)
        self._ttft.create((name,) for name in names)
        self._tokens.create(product(names, _KINDS))

    def ended(self, event: RequestEnded) -> None:
        """Count an ended request."""
        if not self._tenants:
            return
        caller, usage = event.request.caller, event.end.usage
        tenant = caller.tenant if caller.is_verified and caller.tenant in self._tenants else OTHER_TENANT
        self._requests[tenant, event.end.outcome.reason.value] += 1
        if event.ttft_s is not None:
            self._ttft.observe(event.ttft_s, (tenant,))
        if not usage.is_shared:
            counts = (usage.counted_prompt_tokens, usage.cached_prompt_tokens, usage.completion_tokens)
            for kind, count in zip(_KINDS, counts, strict=True):
                self._tokens[tenant, kind] += count

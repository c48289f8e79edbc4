"""A quantile of a histogram of the server's metrics page."""

import asyncio
import math
import urllib.request
from collections.abc import Mapping
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

_TIMEOUT_S = 10.0


async def quantile_ms(ready: Mapping[str, Any], name: str, share: float) -> float | None:
    """Return the upper end, in milliseconds, of the bucket in which a quantile of a histogram of seconds falls.

    `ready` is the server's ready line. None if the histogram is empty, or if the quantile is in its last bucket.

    Raises:
        OSError: the page can't be read.

    """
    buckets = await asyncio.to_thread(_buckets, str(ready["metrics_address"]), f"{name}_bucket")
    num_observed = buckets.get(math.inf, 0.0)
    if not num_observed:
        return None
    end_s = min(each for each, num_below in buckets.items() if num_below >= share * num_observed)
    return 1000 * end_s if math.isfinite(end_s) else None


def _buckets(address: str, name: str) -> dict[float, float]:
    """Return the number of observations up to each end of a bucket, over all labels."""
    host = address.removeprefix("http://").removesuffix("/metrics")
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(f"http://{host}/metrics", timeout=_TIMEOUT_S) as page:
        text = page.read().decode()
    found: dict[float, float] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name == name:
                end_s = float(sample.labels["le"])
                found[end_s] = found.get(end_s, 0.0) + sample.value
    return found

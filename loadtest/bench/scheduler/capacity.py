"""Measures the engine's capacity: whole completions per second, closed loop, by concurrency.

Each caller types in its own document and sends the next key's request as soon as it has its answer, so that the prefix
cache works as while typing.
"""

from loadtest.targets import TargetError
from loadtest.traffic.scenario import Scenario
from loadtest.tuning.replay import Replay, traffic_of

CONCURRENCIES = (4, 8, 16)


async def measure_capacity(address: str, scenario: Scenario, seconds: float) -> dict[int, float]:
    """Return the whole completions per second of a server at HOST:PORT, measured for `seconds` at each concurrency.

    Raises:
        TargetError: a request failed, or none was answered.

    """
    replay = Replay(address, scenario)
    found: dict[int, float] = {}
    try:
        for concurrency in CONCURRENCIES:
            block = await replay.run(await traffic_of(scenario, concurrency, f"capacity/{concurrency}"), seconds)
            answers = [each for each in block.answers if each.shed_reason is None and each.ended_s <= block.window_s]
            found[concurrency] = len(answers) / block.window_s
    finally:
        await replay.close()
    if not any(found.values()):
        msg = f"{address} answered nothing while its capacity was measured"
        raise TargetError(msg)
    return found

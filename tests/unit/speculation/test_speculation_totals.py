from prometheus_client import CollectorRegistry

from completion_server.engine.interface import EngineStep
from completion_server.speculation.totals import SpeculationTotals
from completion_server.telemetry.speculation import SpeculationCollector


def test_steps_are_counted_by_k_and_position() -> None:
    totals = SpeculationTotals()
    totals.add(EngineStep(3, 5, drafted=(3, 2), accepted=(2, 0)))
    totals.add(EngineStep(1, 3, drafted=(1, 1), accepted=(1, 1)))
    totals.add(EngineStep(4, 4))  # K = 0
    registry = CollectorRegistry()
    registry.register(SpeculationCollector(totals))

    def value(name: str, **labels: str) -> float | None:
        return registry.get_sample_value(f"completion_speculation_{name}_total", labels)

    assert (value("steps", k="2"), value("steps", k="0")) == (2, 1)
    assert (value("drafted_tokens", k="2", position="1"), value("drafted_tokens", k="2", position="2")) == (4, 3)
    assert (value("accepted_tokens", k="2", position="1"), value("accepted_tokens", k="2", position="2")) == (3, 1)
    assert value("drafted_tokens", k="0", position="1") is None


def test_a_reading_does_not_change_with_later_k() -> None:
    totals = SpeculationTotals()
    totals.add(EngineStep(1, 1))
    read = totals.read()
    totals.add(EngineStep(1, 2, drafted=(1,), accepted=(1,)))
    assert [k for k, _ in read] == [0]
    assert [k for k, _ in totals.read()] == [0, 1]

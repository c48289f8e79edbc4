"""The scenario of next edits against a whole server with the scripted model of them."""

from completion_server.app.engine_factory import make_engine_factory
from loadtest.driving.driver import Callbacks, Driver
from loadtest.driving.recorder import Recorder
from loadtest.driving.worker import client_settings_of
from loadtest.stats import RunStats
from loadtest.targets import parse_target
from loadtest.targets.grpc import GrpcTarget
from loadtest.targets.record import RunClock
from loadtest.traffic.scenario import Scenario
from loadtest.traffic.trace import make_trace
from tests.support.server import make_config, run_server

SERVED = (
    "engine.kind=scripted", "engine.scripted_times=instant", "engine.max_model_len=4096",
    "prompt.next_edit_template=sweep",
)  # fmt: skip


async def test_a_typist_is_offered_edits() -> None:
    scenario = Scenario.load("next-edits", ["typing.debounce_ms=50", "editor.cancels_at_key=false"])
    made = make_trace(scenario.scaled(sessions=8, duration_s=2.0))
    config = make_config(*SERVED)
    stats = RunStats("next-edits", made.duration_s, 1.0)
    recorder = Recorder(stats, made.sessions, {0: "local"}, scenario.criteria)
    async with run_server(config, make_engine_factory(config)) as server:
        spec = parse_target(f"grpc://{server.ready.address}")
        async with GrpcTarget(spec, client_settings_of(scenario)) as target, target.editors(made) as editors:
            driver = Driver(made, editors, RunClock(0.2), Callbacks(recorder.due, recorder.ended))
            await driver.drive(20.0)
    counters = stats.total.counters
    assert counters["sent"] == made.num_requests > 10
    assert counters["errors"] == 0
    assert counters["edit_answers"] + counters["outcome/superseded"] + counters["outcome/shed"] == counters["sent"]
    assert counters["edit_answers"] > 0
    assert len(stats.total.histograms["total"]) == counters["edit_answers"]

"""Agent, gateway, Jaeger and files together: what goes in comes out everywhere."""

from __future__ import annotations

import json

import pytest

from otel_tf.cli.main import main
from otel_tf.correlator import correlate
from otel_tf.correlator.sinks import write
from otel_tf.errors import UserError
from tests.collector.support import (
    get,
    request,
    send,
    span,
    spans_in_files,
    spans_in_jaeger,
    spans_of,
    until,
)


@pytest.fixture
def chain(collector, jaeger):
    """An agent that sends to a gateway that sends to a Jaeger."""
    to = jaeger()
    gateway = collector("gateway", JAEGER=to.otlp_http)
    return collector("agent", GATEWAY=gateway.http), gateway, to


@pytest.fixture
def simulated(tmp_path):
    """A run with four workers whose clocks disagree, as OTLP JSON lines."""
    from otel_tf.correlator.simulate import Scenario
    from otel_tf.correlator.simulate import simulate as make
    from otel_tf.correlator.simulate_files import write

    run = make(Scenario(workers=4, spans=3000, seed=3))
    write(run, tmp_path / "simulated")
    assert run.inversions() > 100
    return tmp_path / "simulated"


def test_a_run_is_in_the_files_as_the_correlator_reads_it_and_in_jaeger(chain, simulated):
    agent, gateway, jaeger = chain
    documents = [path.read_bytes() for path in sorted(simulated.glob("*.jsonl"))]
    for document in documents:
        send(agent.http, document)
    sent = spans_in_files(simulated)
    assert len(sent) == sent.total() > 2500

    run_dir = gateway.runs / "simulated-3"
    until(lambda: spans_in_files(run_dir) == sent, "all spans in the run's folder")
    assert spans_in_files(gateway.runs) == sent

    directly, behind = correlate(str(simulated)), correlate(str(run_dir))
    assert behind.report["run_id"] == "simulated-3"
    assert behind.report["violations"] == 0
    assert behind.report["wall_clock_inversions"] > 100
    assert behind.report["skipped"] == {}
    assert behind.spans.equals(directly.spans)
    assert behind.edges.equals(directly.edges)

    trace = next(spans_of(json.loads(documents[0].splitlines()[0])))["traceId"]
    wanted = {
        each["spanId"]
        for document in documents
        for line in document.splitlines()
        for each in spans_of(json.loads(line))
        if each["traceId"] == trace
    }
    until(lambda: set(spans_in_jaeger(jaeger, trace)) == wanted, "the trace in Jaeger")


def test_compressed_files_are_read_as_well(collector, simulated):
    gateway = collector("gateway", FILE_COMPRESSION="zstd")
    for path in sorted(simulated.glob("*.jsonl")):
        send(gateway.http, path.read_bytes())
    run_dir = gateway.runs / "simulated-3"
    (file,) = run_dir.iterdir()
    assert file.stat().st_size * 3 < sum(path.stat().st_size for path in simulated.glob("*.jsonl"))
    assert correlate(str(run_dir)).spans.equals(correlate(str(simulated)).spans)


def test_logs_and_spans_of_no_run_have_their_files_and_runs_their_own(chain):
    agent, gateway, _ = chain
    for run in ("one", "../two"):
        send(agent.http, request([span(run, trace=(run,))], tensorflow__run__id=run))
    foreign = span("select", trace=("foreign",), name="SELECT")
    send(agent.http, request([foreign]))
    resource = {"attributes": [{"key": "tensorflow.run.id", "value": {"stringValue": "one"}}]}
    line = {"body": {"stringValue": "loss is NaN"}, "severityNumber": 13}
    logs = {"resourceLogs": [{"resource": resource, "scopeLogs": [{"logRecords": [line]}]}]}
    send(agent.http, logs, "logs")

    def files() -> list[str]:
        return sorted(str(path.relative_to(gateway.runs)) for path in gateway.runs.rglob("*.jsonl"))

    wanted = [
        "no-run/gateway.traces.jsonl",
        "one/gateway.logs.jsonl",
        "one/gateway.traces.jsonl",
        # The name of a run leads nowhere outside.
        "two/gateway.traces.jsonl",
    ]
    until(lambda: files() == wanted, "a file of each kind")
    until(lambda: spans_in_files(gateway.runs).total() == 3, "every span in one file")
    assert spans_in_files(gateway.runs / "no-run") == {foreign["spanId"]: 1}
    assert "loss is NaN" in (gateway.runs / "one" / "gateway.logs.jsonl").read_text()
    # Logs beside them do not disturb who reads the spans.
    assert correlate(str(gateway.runs / "one")).report["spans"] == 1


def test_metrics_of_the_training_are_on_the_gateways_page(chain):
    agent, gateway, _ = chain
    point = {"asInt": "7", "timeUnixNano": "1796000000000000000", "attributes": []}
    total = {"dataPoints": [point], "aggregationTemporality": 2, "isMonotonic": True}
    metric = {"name": "otel_tf.spans.dropped", "unit": "{span}", "sum": total}
    send(agent.http, {"resourceMetrics": [{"scopeMetrics": [{"metrics": [metric]}]}]}, "metrics")
    until(
        lambda: "otel_tf_spans_dropped_total 7" in (get(gateway.ports["PROMETHEUS_PORT"], "/metrics") or ""),
        "the metric",
    )


def test_a_run_that_reached_nobody_is_replayed_through_the_agent(chain, simulated, capsys):
    agent, gateway, _ = chain
    assert main(["replay", str(simulated), "--endpoint", agent.http, "--format", "json"]) == 0
    sent = spans_in_files(simulated)
    assert json.loads(capsys.readouterr().out)["sent"] == sent.total()
    until(lambda: spans_in_files(gateway.runs / "simulated-3") == sent, "all spans in the run's folder")


def test_corrected_spans_go_to_jaeger_and_not_into_the_files_they_were_made_of(chain, simulated):
    agent, gateway, jaeger = chain
    for path in simulated.glob("*.jsonl"):
        send(agent.http, path.read_bytes())
    run_dir = gateway.runs / "simulated-3"
    sent = spans_in_files(simulated)
    until(lambda: spans_in_files(run_dir) == sent, "all spans in the run's folder")
    write(correlate(str(run_dir)), f"jaeger={agent.http}", lambda _: None)
    source = f"jaeger+{jaeger.ui}?run=simulated-3&service=simulated.logical%20worker:0"
    until(lambda: found(source), "the corrected spans in Jaeger")
    assert spans_in_files(gateway.runs) == sent


def found(source: str) -> bool:
    try:
        return bool(correlate(source).report["spans"])
    except UserError:
        return False

"""Parts that go away, and what is there after they are back."""

from __future__ import annotations

from collections import Counter

import pytest

from otel_tf.jaeger import Ports
from tests.collector.support import (
    HOST,
    Collector,
    free_ports,
    request,
    send,
    span,
    spans_in_files,
    spans_in_jaeger,
    until,
)

A_REQUEST = 25


def send_spans(endpoint: str, trace: str, requests: int, size: int = A_REQUEST) -> Counter[str]:
    """Sends requests of one trace; returns the ids of all spans, each of which was taken."""
    sent: Counter[str] = Counter()
    for number in range(requests):
        spans = [span(number, n, trace=(trace,)) for n in range(size)]
        send(endpoint, request(spans, tensorflow__run__id="run"))
        sent.update(each["spanId"] for each in spans)
    return sent


def trace_id(trace: str) -> str:
    return str(span(trace=(trace,))["traceId"])


@pytest.fixture
def ports() -> Ports:
    """Where a Jaeger will be, sooner or later."""
    return Ports(*free_ports(5))


@pytest.mark.parametrize("ending", ["kill", "stop"])
def test_an_agent_without_a_gateway_keeps_every_span_over_its_own_death(collector, ending):
    gateway = collector("gateway", started=False)
    agent = collector("agent", GATEWAY=gateway.http)
    sent = send_spans(agent.http, "before", 40)
    # Some of it is on the way to nobody when it ends.
    until(lambda: agent.metric("otelcol_exporter_in_flight_requests", data_type="traces") > 0, "an attempt")
    getattr(agent, ending)()
    agent.start()
    sent += send_spans(agent.http, "after", 10)
    gateway.start()
    until(lambda: spans_in_files(gateway.runs).total() >= sent.total(), "all spans at the gateway")
    assert spans_in_files(gateway.runs) == sent


def test_what_a_gateway_took_is_in_the_files_when_it_is_killed(collector):
    gateway = collector("gateway")
    sent = send_spans(gateway.http, "run", 40)
    gateway.kill()
    assert spans_in_files(gateway.runs) == sent
    # The next one goes on in the same file.
    gateway.start()
    sent += send_spans(gateway.http, "more", 1)
    assert spans_in_files(gateway.runs) == sent


@pytest.mark.parametrize("ending", ["kill", "stop"])
def test_jaeger_gets_what_it_missed_also_over_the_gateways_death(collector, jaeger, ports, ending):
    gateway = collector("gateway", JAEGER=f"http://{HOST}:{ports.otlp_http}")
    sent = send_spans(gateway.http, "missed", 40)
    queued(gateway, sent.total())
    assert spans_in_files(gateway.runs) == sent
    getattr(gateway, ending)()
    gateway.start()
    running = jaeger(ports=ports)
    until(lambda: spans_in_jaeger(running, trace_id("missed")) == sent, "all spans in Jaeger")


def queued(gateway: Collector, spans: int) -> None:
    """Waits until so many spans are in the queue for Jaeger; those being sent do not count in it."""
    until(
        lambda: gateway.metric("otelcol_processor_batch_batch_send_size_sum") >= spans,
        "spans in the queue for Jaeger",
    )


def test_a_full_queue_for_jaeger_costs_only_jaegers_copy(collector, jaeger, ports):
    gateway = collector("gateway", JAEGER=f"http://{HOST}:{ports.otlp_http}", QUEUE_ITEMS=9000)
    agent = collector("agent", GATEWAY=gateway.http)
    sent = send_spans(agent.http, "many", 100, size=250)
    until(lambda: gateway.metric("otelcol_exporter_enqueue_failed_spans") > 0, "a full queue")
    # Nobody was turned away for it, and so nobody sends anything again.
    until(lambda: agent.metric("otelcol_exporter_sent_spans") == sent.total(), "all spans at the gateway")
    assert gateway.metric("otelcol_receiver_refused_spans") == 0
    assert gateway.metric("otelcol_receiver_accepted_spans") == sent.total()
    assert spans_in_files(gateway.runs) == sent
    running = jaeger(ports=ports)
    there = until(lambda: spans_in_jaeger(running, trace_id("many")), "the others in Jaeger")
    assert there.total() <= 9000


def test_files_that_cannot_be_written_cost_only_the_files(collector, jaeger):
    running = jaeger()
    gateway = collector("gateway", JAEGER=running.otlp_http)
    agent = collector("agent", GATEWAY=gateway.http)
    (gateway.runs / "run").write_text("where the run's folder should be")
    sent = send_spans(agent.http, "no file", 4)
    until(lambda: spans_in_jaeger(running, trace_id("no file")) == sent, "all spans in Jaeger")
    assert gateway.metric("otelcol_exporter_send_failed_spans", exporter="file/traces") == sent.total()
    assert "not a directory" in gateway.log.read_text()
    # The agent is told that it is for good, and does not try for ever.
    until(lambda: agent.metric("otelcol_exporter_queue_size", data_type="traces") == 0, "an empty queue")


def test_a_full_queue_of_an_agent_is_said_to_the_sender(collector):
    agent = collector("agent", QUEUE_ITEMS=4096, GATEWAY=f"http://{HOST}:{free_ports(1)[0]}")
    with pytest.raises(AssertionError, match="sending queue is full"):
        send_spans(agent.http, "too many", 1000)

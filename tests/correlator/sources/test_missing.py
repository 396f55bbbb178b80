"""What is missing of a run, told from what is there."""

from __future__ import annotations

import pytest

from otel_tf import ids
from otel_tf.correlator.sources.missing import absent, missing


def step(samples, number, name="train_step", **attributes):
    return samples.span(number + 1, {"tensorflow.global_step": number, **attributes}, name=name)


def resource(process="worker:0"):
    return {"service.name": "s", "service.instance.id": process, "tensorflow.run.id": "r"}


def test_nothing_is_missing_where_nothing_tells(samples):
    assert missing(samples.read(samples.traces(samples.span(1))).spans) == {"parents": 0}
    assert absent(samples.read(samples.traces(samples.span(1))).spans) is None


def test_parents_are_looked_for_in_the_same_trace(samples):
    trace = samples.span(1)["traceId"]
    spans = [
        samples.span(1),
        samples.span(2, traceId=trace, parentSpanId=f"{1:016x}"),
        samples.span(3, parentSpanId=f"{1:016x}"),
        samples.span(4, traceId=trace, parentSpanId=f"{99:016x}"),
    ]
    assert missing(samples.read(samples.traces(*spans)).spans) == {"parents": 2}


@pytest.mark.parametrize(
    ("there", "expected"),
    [
        ([0, 1, 2, 3], []),
        ([7, 8, 12], [9, 10, 11]),
        ([0, 10, 20, 50], [30, 40]),  # ten steps in one go
        ([5], None),
    ],
)
def test_steps_between_others(samples, there, expected):
    read = samples.read(samples.traces(*(step(samples, n) for n in there), resource=resource())).spans
    found = absent(read)
    if expected is None:
        assert found is None
        assert missing(read) == {"parents": 0}
        return
    assert found.numbers.tolist() == expected
    assert found.trace_ids(found.numbers) == [ids.trace_id("r", "step", n) for n in expected]
    assert missing(read) == {"parents": 0, "steps": len(expected)}


def test_loops_beside_the_main_one_do_not_count(samples):
    aside = [step(samples, n, **{"tensorflow.step.stream": "d"}) for n in (100, 200)]
    read = samples.read(samples.traces(step(samples, 1), step(samples, 3), *aside, resource=resource()))
    assert missing(read.spans) == {"parents": 0, "steps": 0}


def test_closures_count_from_the_first(samples):
    spans = [
        samples.span(n, {"tensorflow.closure.id": n, "tensorflow.global_step": 5 * n}, name="closure")
        for n in (2, 3, 6)
    ]
    read = samples.read(samples.traces(*spans, resource=resource())).spans
    found = absent(read)
    assert found.numbers.tolist() == [0, 1, 4, 5]
    assert found.trace_ids(found.numbers)[0] == ids.trace_id("r", "closure", 0)
    assert missing(read) == {"parents": 0, "closures": 4}


def test_sequence_numbers_of_each_process(samples):
    documents = [
        samples.traces(
            *(samples.span(base + n, {"tensorflow.seq": n}) for n in numbers), resource=resource(process)
        )
        for base, process, numbers in ((0, "worker:0", [1, 2, 5]), (100, "worker:1", [4]))
    ]
    assert missing(samples.read(*documents).spans) == {"parents": 0, "sequence": 2 + 3}

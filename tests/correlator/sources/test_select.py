"""Of everything that was read: one run, the steps asked for, every span once."""

from __future__ import annotations

import itertools

import pytest

from otel_tf.correlator import sources
from otel_tf.errors import UserError


def of_run(run: str | None) -> dict[str, str]:
    return {"service.name": "train"} | ({"tensorflow.run.id": run} if run else {})


@pytest.fixture
def three_runs(samples):
    """Run b ended last; spans without a run are in a trace of run a, in one of b, and alone."""
    samples.write(
        samples.traces(samples.span(1), samples.span(2), resource=of_run("a")),
        samples.traces(samples.span(9), resource=of_run("b")),
        samples.traces(samples.span(5), resource=of_run("c")),
        samples.traces(
            samples.span(11, traceId=samples.span(1)["traceId"]),
            samples.span(12, traceId=samples.span(9)["traceId"]),
            samples.span(13),
            resource=of_run(None),
        ),
    )
    return str(samples.folder / "run.jsonl")


def test_the_run_that_ended_last_is_taken_and_the_others_are_named(three_runs, said):
    lines, say = said
    ingested = sources.read([three_runs], say=say)
    assert sorted(ingested.spans["span_id"].to_pylist()) == [9, 12]
    assert lines == ["3 runs here: taking the last one, b (others: c, a; choose with --run)"]


def test_a_run_asked_for_is_taken_in_silence(three_runs, said):
    lines, say = said
    ingested = sources.read([three_runs], run="a", say=say)
    assert sorted(ingested.spans["span_id"].to_pylist()) == [1, 2, 11]
    assert lines == []


def test_a_run_that_is_not_there(three_runs):
    with pytest.raises(UserError, match=r"no spans of run 'z'; runs here: b, c, a"):
        sources.read([three_runs], run="z")


def test_spans_without_a_run_belong_to_the_only_one(samples):
    lines = [
        samples.traces(samples.span(n), resource=of_run(run)) for n, run in ((1, None), (2, "a"), (3, None))
    ]
    assert samples.read(*lines).spans.num_rows == 3


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        ((2, 3), {20, 21, 30, 99}),
        ((None, 1), {10, 11, 99}),
        ((3, None), {30, 99}),
        ((2, 2), {20, 21, 99}),
    ],
)
def test_steps(samples, steps, expected):
    def trace_of(number):
        return {"traceId": f"{number:032x}"}

    at = "tensorflow.global_step"
    path = samples.write(
        samples.traces(
            samples.span(10, {at: 1}, **trace_of(1)),
            samples.span(11, **trace_of(1)),  # without a step, in a trace with one
            samples.span(20, {at: 2}, **trace_of(2)),
            samples.span(21, **trace_of(2)),
            samples.span(30, {at: 3}, **trace_of(3)),
            samples.span(99, **trace_of(9)),  # in a trace without any
        )
    )
    assert set(sources.read([str(path)], steps=steps).spans["span_id"].to_pylist()) == expected


def test_steps_that_nobody_took(samples):
    path = samples.write(samples.traces(samples.span(1, {"tensorflow.global_step": 1})))
    with pytest.raises(UserError, match="no spans of the steps 5:9"):
        sources.read([str(path)], steps=(5, 9))


def test_a_span_that_comes_twice_is_taken_once_whatever_the_order(samples):
    versions = [
        samples.traces(samples.span(1)),
        samples.traces(samples.span(1)),
        samples.traces(samples.span(1, name="other")),
        samples.traces(samples.span(1), resource={"service.name": "elsewhere"}),
        samples.traces(samples.span(2)),
        samples.traces(samples.span(1, traceId=f"{5:032x}")),  # another trace: not the same span
    ]
    answers = set()
    for order in itertools.permutations(range(len(versions))):
        ingested = samples.read(*(versions[i] for i in order))
        assert ingested.skipped == {"duplicate": 1, "conflicting_duplicate": 2}
        answers.add(frozenset(tuple(row.items()) for row in ingested.spans.to_pylist()))
    assert len(answers) == 1
    assert len(next(iter(answers))) == 3


def test_the_same_source_twice_changes_nothing_but_the_count(samples):
    linked = [{"traceId": f"{9:032x}", "spanId": f"{8:016x}"}]
    path = str(samples.write(samples.traces(*(samples.span(n, links=linked) for n in range(1, 50)))))
    once, twice = sources.read([path]), sources.read([path, path])
    assert twice.spans.sort_by("span_id").equals(once.spans.sort_by("span_id"))
    assert twice.links.num_rows == once.links.num_rows
    assert twice.skipped == {"duplicate": 49}


def test_several_sources_make_one_run(samples):
    one = samples.write(samples.traces(samples.span(1)), name="a.jsonl")
    two = samples.write(samples.traces(samples.span(2)), name="b.jsonl")
    assert sources.read([str(one), str(two)]).spans["span_id"].to_pylist() == [1, 2]

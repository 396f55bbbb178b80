"""A task that was restarted has two lives, and two timelines."""

from __future__ import annotations

import json

import pytest

from otel_tf.cli.main import main
from otel_tf.correlator import correlate, sources

MS = 1_000_000
FIRST, SECOND = "2026-10-01T08:00:00.000Z", "2026-10-01T09:00:00.000Z"


def resource(created=None, pid=None, *, task="worker:1", run="r", **more):
    return {
        "service.name": "mnist",
        "service.instance.id": f"{run}/{task}",
        "tensorflow.run.id": run,
        "tensorflow.clock.domain": f"boot-{task}",
        **({"process.creation.time": created} if created else {}),
        **({"process.pid": pid} if pid else {}),
        **more,
    }


def processes(samples, *resources):
    """Reads one span of each resource, in this order in time; returns what their processes are called."""
    lines = [samples.traces(samples.span(n), resource=of) for n, of in enumerate(resources, 1)]
    spans = samples.read(*reversed(lines)).spans.sort_by("start_ns")
    assert "process_pid" not in spans.column_names
    return spans["process"].to_pylist()


@pytest.mark.parametrize(
    ("resources", "lives"),
    [
        ([(FIRST, 7), (FIRST, 7)], [1, 1]),
        ([(FIRST, 7), (SECOND, 7)], [1, 2]),  # in containers, the number is the same
        ([(FIRST, 7), (SECOND, 8), (FIRST, 7)], [1, 2, 1]),
        ([(None, 7), (None, 8), (None, 9), (None, 8)], [1, 2, 3, 2]),
        ([(None, None), (None, None)], [1, 1]),
        # What the coordinator wrote knows the number only.
        ([(FIRST, 7), (None, 7), (SECOND, 8), (None, 8)], [1, 1, 2, 2]),
        ([(FIRST, 7), (None, 7)], [1, 1]),
        ([(FIRST, 7), (None, 8)], [1, 2]),
        ([(FIRST, 7), (SECOND, 7), (None, 7)], [1, 2, 3]),
        ([(None, None), (FIRST, 7)], [1, 1]),
        ([(FIRST, 7), (None, None), (SECOND, 7)], [1, 2, 3]),
    ],
)
def test_lives_by_when_they_began_else_by_number(samples, resources, lives):
    named = ["r/worker:1" if life == 1 else f"r/worker:1#{life}" for life in lives]
    assert processes(samples, *(resource(*of) for of in resources)) == named


def test_other_names_and_runs_keep_theirs(samples):
    others = [resource(FIRST, 7), resource(SECOND, 8, task="worker:2"), resource(SECOND, 8, task="ps:0")]
    assert processes(samples, *others) == ["r/worker:1", "r/worker:2", "r/ps:0"]
    # Another run's process of that name is not an earlier life.
    lines = [
        samples.traces(samples.span(1), resource={**resource(FIRST, 7), "service.instance.id": "worker"}),
        samples.traces(
            samples.span(2), resource={**resource(SECOND, 8, run="s"), "service.instance.id": "worker"}
        ),
    ]
    path = str(samples.write(*lines))
    assert sources.read([path], run="s").spans["process"].to_pylist() == ["worker"]
    assert sources.read([path], run="r").spans["process"].to_pylist() == ["worker"]


def test_the_name_does_not_depend_on_the_steps_asked_for(samples):
    step = "tensorflow.global_step"
    path = samples.write(
        samples.traces(samples.span(1, {step: 1}), resource=resource(FIRST, 7)),
        samples.traces(samples.span(2, {step: 2}), resource=resource(SECOND, 8)),
    )
    assert sources.read([str(path)], steps=(2, 2)).spans["process"].to_pylist() == ["r/worker:1#2"]


def test_a_clock_that_is_only_the_processs_name_is_of_one_life(samples):
    plain = {"service.name": "a", "service.instance.id": "x"}
    lines = [
        samples.traces(samples.span(1), resource={**plain, "process.pid": 7}),
        samples.traces(samples.span(2), resource={**plain, "process.pid": 8}),
        samples.traces(samples.span(3), resource={**plain, "process.pid": 8, "host.name": "h"}),
    ]
    assert samples.read(*lines).spans["domain"].to_pylist() == ["x", "x#2", "h"]


def restarted(samples):
    """A worker that was restarted after 20 steps and counts its sequence numbers from 1 again."""

    def step(k, seq, at):
        worker = {"tensorflow.worker": "worker:1", "tensorflow.global_step": k, "tensorflow.seq": seq}
        mono = {"tensorflow.monotonic_ns": at}
        times = {"startTimeUnixNano": str(samples.t0 + at), "endTimeUnixNano": str(samples.t0 + at + MS)}
        return samples.span(k, {**worker, **mono}, traceId=f"{k:032x}", **times)

    first = [step(k, k, k * 10 * MS) for k in range(1, 21)]
    second = [step(k, k - 20, k * 10 * MS) for k in range(21, 41)]
    return (
        samples.traces(*first, resource=resource(FIRST, 7)),
        samples.traces(*second, resource=resource(SECOND, 8)),
    )


def test_a_restarted_worker_keeps_its_order(samples, tmp_path, capsys):
    path = samples.write(*restarted(samples))
    result = correlate(str(path))
    assert result.report["processes"] == 2
    assert result.spans["global_step"].to_pylist() == list(range(1, 41))
    assert set(result.spans["shift_ns"].to_pylist()) == {0}
    assert main(["correlate", str(path), "--to", f"parquet={tmp_path}/out", "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["steps"] == {"worker:1": {"count": 40, "first": 1, "last": 40}}
    # What was written reads as it was.
    again = correlate(f"{tmp_path}/out")
    assert again.spans["process"].to_pylist() == ["r/worker:1"] * 20 + ["r/worker:1#2"] * 20
    assert again.spans["order"].to_pylist() == result.spans["order"].to_pylist()

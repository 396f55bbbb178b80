from __future__ import annotations

import numpy as np
import pytest

from otel_tf.correlator.columns import from_spans
from otel_tf.correlator.edges import KINDS, barrier_pairs, barriers, causal_edges, with_barriers
from otel_tf.correlator.engines.duckdb import DuckEngine
from tests.correlator.support import CLIENT, CONSUMER, INTERNAL, MS, PRODUCER, SERVER, T0, ingested


def edges_of(rows, links=()):
    """Edges as readable texts: 1s→2s:nested is from the start of span 1 to that of span 2."""
    given = ingested(rows, list(links))
    columns = from_spans(given.spans)
    local = np.stack([columns.start_ns, columns.end_ns], axis=1).ravel()
    found = causal_edges(columns, local, given.links, DuckEngine())
    assert (found.min_ns == 1).all()
    return {
        f"{src // 2 + 1}{'se'[src % 2]}→{dst // 2 + 1}{'se'[dst % 2]}:{KINDS[kind]}"
        for src, dst, kind in zip(found.src.tolist(), found.dst.tolist(), found.kind.tolist(), strict=True)
    }


def pair(parent_kind, child_kind, *, elsewhere=True, child_end=8, **parent):
    other = {"process": "p1", "domain": "d1"} if elsewhere else {}
    return [
        {"kind": parent_kind, "start_ns": T0, "end_ns": T0 + 10, **parent},
        {"kind": child_kind, "parent_id": 1, "start_ns": T0 + 2, "end_ns": T0 + child_end, **other},
    ]


@pytest.mark.parametrize("kind", [INTERNAL, SERVER, CLIENT, PRODUCER, CONSUMER])
def test_a_child_in_the_same_process_lies_within_its_parent(kind):
    assert edges_of(pair(INTERNAL, kind, elsewhere=False)) == {"1s→2s:nested", "2e→1e:nested"}


@pytest.mark.parametrize("end", [10, 11])
def test_a_child_that_does_not_end_before_its_parent_was_not_waited_for(end):
    assert edges_of(pair(INTERNAL, INTERNAL, elsewhere=False, child_end=end)) == {"1s→2s:nested"}


def test_a_call_has_a_request_and_a_response():
    assert edges_of(pair(CLIENT, SERVER)) == {"1s→2s:request", "2e→1e:response"}


def test_a_failed_call_proves_no_response():
    assert edges_of(pair(CLIENT, SERVER, status=2)) == {"1s→2s:request"}


@pytest.mark.parametrize(
    ("parent", "child"),
    [(PRODUCER, CONSUMER), (INTERNAL, SERVER), (INTERNAL, INTERNAL), (CLIENT, INTERNAL), (PRODUCER, SERVER)],
)
def test_elsewhere_a_parent_only_began_before_its_child(parent, child):
    assert edges_of(pair(parent, child)) == {"1s→2s:context"}


def test_the_root_of_a_synchronous_step_says_nothing_about_other_workers():
    assert edges_of(pair(INTERNAL, INTERNAL, name="step")) == set()
    assert edges_of(pair(INTERNAL, INTERNAL, name="step", elsewhere=False)) == {
        "1s→2s:nested",
        "2e→1e:nested",
    }


@pytest.mark.parametrize("elsewhere", [False, True])
@pytest.mark.parametrize("name", ["train_step", "execute"])
def test_what_was_stamped_inside_the_graph_may_have_begun_after_its_ops(name, elsewhere):
    assert edges_of(pair(SERVER, INTERNAL, elsewhere=elsewhere, name=name)) == set()
    assert edges_of(pair(SERVER, CLIENT, elsewhere=elsewhere, name=name)) != set()
    assert edges_of(pair(INTERNAL, INTERNAL, elsewhere=elsewhere, name=name)) != set() or name == "execute"


@pytest.mark.parametrize("name", ["function_run", "region"])
def test_a_run_or_region_may_have_begun_later_than_ops_of_it_elsewhere(name):
    assert edges_of(pair(INTERNAL, INTERNAL, name=name)) == set()
    assert edges_of(pair(INTERNAL, INTERNAL, name=name, elsewhere=False)) == {"1s→2s:nested", "2e→1e:nested"}


def test_one_process_on_two_clocks_is_two_timelines():
    rows = pair(INTERNAL, INTERNAL)
    rows[1]["process"] = "p0"
    assert edges_of(rows) == {"1s→2s:context"}


def test_a_link_is_from_start_to_start_and_to_the_end_of_a_receive():
    rows = [
        {"start_ns": T0, "end_ns": T0 + 5},
        {
            "name": "_Recv",
            "kind": CONSUMER,
            "process": "p1",
            "domain": "d1",
            "start_ns": T0 - 9,
            "end_ns": T0 + 9,
        },
        {"kind": CONSUMER, "process": "p1", "domain": "d1", "start_ns": T0 + 6, "end_ns": T0 + 9},
    ]
    assert edges_of(rows, [(1, 1), (2, 1)]) == {"1s→2e:link", "1s→3s:link"}


def test_parents_and_links_that_are_not_there_and_spans_that_are_their_own_make_no_edges():
    rows = [
        {"span_id": 1, "parent_id": 1, "start_ns": T0, "end_ns": T0},
        {"span_id": 2, "parent_id": 77, "start_ns": T0, "end_ns": T0},
    ]
    assert edges_of(rows, [(0, 1), (1, 99)]) == set()


def test_the_same_span_id_in_another_trace_is_another_span():
    rows = pair(CLIENT, SERVER)
    rows[1]["trace_lo"] = 2
    assert edges_of(rows) == set()


def collective(worker, instance, *, at=0, stay=MS, trace=1, group=1):
    return {
        "name": "collective",
        "process": f"p{worker}",
        "domain": f"d{worker}",
        "group_key": group,
        "instance_key": instance,
        "trace_lo": trace,
        "start_ns": T0 + at,
        "end_ns": T0 + at + stay,
    }


def met(rows):
    """Rows by barrier."""
    found = barriers(from_spans(ingested(rows).spans))
    groups = {}
    for number, row in zip(found.number.tolist(), found.row.tolist(), strict=True):
        groups.setdefault(number, set()).add(row)
    assert len(groups) == found.count
    return sorted(groups.values(), key=min)


def test_collectives_of_one_instance_are_one_barrier():
    rows = [collective(worker, instance) for instance in (5, 6) for worker in range(3)]
    assert met(rows) == [{0, 1, 2}, {3, 4, 5}]


def test_a_collective_of_one_timeline_is_no_barrier():
    assert met([collective(0, 5), collective(1, 6)]) == []
    assert met([collective(0, 5), collective(0, 5, at=MS)]) == []


def test_groups_do_not_meet():
    assert met([collective(w, 5, group=g) for g in (1, 2) for w in (0, 1)]) == [{0, 1}, {2, 3}]


def test_repeated_keys_pair_by_step_and_a_lost_one_unpairs_only_its_own():
    rows = [collective(worker, 5, at=step * 10 * MS, trace=step) for step in range(4) for worker in (0, 1)]
    del rows[3]  # worker 1 in step 1
    assert met(rows) == [{0, 1}, {3, 4}, {5, 6}]


def test_the_nth_meeting_within_a_step_is_the_nth_of_the_others():
    rows = [collective(worker, 5, at=turn * MS * 2) for turn in range(3) for worker in (0, 1)]
    assert met(rows) == [{0, 1}, {2, 3}, {4, 5}]


def test_a_barrier_takes_two_edges_a_member():
    rows = [collective(worker, 5) for worker in range(5)]
    columns = from_spans(ingested(rows).spans)
    found = barriers(columns)
    none = causal_edges(columns, np.zeros(10, np.int64), ingested(rows).links, DuckEngine())
    edges = with_barriers(none, found, columns.count)
    assert sorted(zip(edges.src.tolist(), edges.dst.tolist(), strict=True)) == sorted(
        [(2 * row, 10) for row in range(5)] + [(10, 2 * row + 1) for row in range(5)]
    )


def test_pairs_of_a_small_barrier_are_all_pairs_and_of_a_large_one_few_and_true():
    rows = [collective(worker, 5) for worker in range(4)]
    found = barriers(from_spans(ingested(rows).spans))
    enter, leave, number = barrier_pairs(found, np.arange(4))
    assert {(e // 2, w // 2) for e, w in zip(enter.tolist(), leave.tolist(), strict=True)} == {
        (a, b) for a in range(4) for b in range(4) if a != b
    }
    assert number.tolist() == [0] * 12
    rows = [collective(worker, 5) for worker in range(100)]
    found = barriers(from_spans(ingested(rows).spans))
    stay = np.arange(100)[::-1].copy()  # the last row was inside the shortest
    enter, leave, _ = barrier_pairs(found, stay)
    assert len(enter) < 1000
    pairs = {(e // 2, w // 2) for e, w in zip(enter.tolist(), leave.tolist(), strict=True)}
    last = int(found.row[np.argmin(stay)])
    assert {(last, other) for other in range(100) if other != last} <= pairs
    assert {(other, last) for other in range(100) if other != last} <= pairs

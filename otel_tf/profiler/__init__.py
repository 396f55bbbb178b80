"""Profiles of TensorFlow as spans: XSpace files to Arrow columns, op spans, edges between machines, OTLP.

Needs no TensorFlow. `profile` does everything::

    profiled = profile(["logdir"], run=["otel-tf-runs/r1"], cluster={"localhost:32101": "worker:0"})
    profiled.ops, profiled.steps, profiled.edges, profiled.staleness, profiled.report  # and more, below

The parts can be had one by one: `xspace.read_file` (bytes to columns), `executor.read_ops` (runs of functions
and ops), `link.link`, `regions`, `edges`, `staleness`; `sinks.encoded(profiled, otlp.Proto())` yields OTLP
requests, `sinks.write` goes to files and Jaeger.

What a program may leave in a profile, and in the run, for this to find:

- A TraceMe with the stats ``otel_trace="t-<32 hex>"`` and ``otel_span="s-<16 hex>"`` (`linkage` makes
  them) is a step (or an eager region): what ran inside it becomes its child. ``step_num`` beside them is
  its global step.
- A file ``*.cluster.json`` in the run directory: ``{"localhost:32101": "worker:0", …}`` says whose profile a
  file ``localhost_32101.xplane.pb`` is. A ClusterSpec as of ``TF_CONFIG`` (``{"worker":
  ["localhost:32101"]}``) is understood as well, there and as ``--cluster-spec``. A file of no known address
  is the process that captured itself: the run's only task without an address, else named by its file.
- A file ``*.graph.json`` in the run directory, one JSON object a line, tells of a traced function what
  its ops' names do not: ``{"function": "__inference_step_59", "variables": {"<op name>": "<variable name>",
  …}}`` for ops that read or write a variable (the graph knows the handle they take). Without it staleness
  is told only where it is the same whichever read of the step belonged to the variable.
- Scopes whose names are regions: see `regions`.

Tables (Arrow; texts are dictionary-encoded; ``ns`` are wall-clock where the file says when it began, else
they begin with the file, and ``absolute`` in ``hosts`` is false; ``ps`` count from ``base_ns`` of the
host):

- ``hosts``: ``host`` (number), ``file``, ``session`` (the logdir's run name), ``task`` (``worker:0`` or
  null), ``hostname``, ``base_ns``, ``end_ns``, ``absolute``, ``events``, ``lacking`` (bytes that could not
  be read).
- ``events``, as in the file: ``host``, ``plane``, ``line`` (number within the host), ``line_id``,
  ``line_name``, ``name``, ``type`` (TensorFlow's display name: the op type), ``start_ps``, ``duration_ps``,
  and the stats of `xspace.STATS` (``node`` is the stat ``name``); null where an event has none.
- ``steps``, a row a run of a function on one host: ``host``, ``step_id`` (the executor's), ``function``,
  ``start_ns``, ``end_ns``, ``worker`` (whose step it was, also on a parameter server), ``global_step``,
  ``trace_id`` (binary 16), ``span_id`` (binary 8) of the step's span, ``linked`` (by ``traceme``, ``stamps``,
  ``dispatch``, ``step_id``, or null: then the span is made here).
- ``ops``, a row an op: ``host``, ``step`` (row of ``steps``, -1 for none), ``name`` (of the node), ``type``,
  ``device``, ``start_ns``, ``end_ns``, ``parent`` (row of ``ops`` it is nested in, -1 for none), ``region``
  (row of ``region_spans``, -1), ``variable``, ``span_id`` (int64, as in the correlator).
- ``region_spans``, a row a region of a step: ``name``, ``scope``, ``step`` (a row of ``steps``), ``host``,
  ``parent`` (row, -1), ``start_ns``, ``end_ns``, ``span_id``.
- ``edges``, between rows of ``ops``: ``src``, ``dst``, ``kind`` (``send_recv``, ``collective``, ``apply``),
  ``step_id``, ``key`` (rendezvous key; ``group/instance/occurrence``; variable). A send begins before its
  receive ends. Of a collective the first host's member stands with each other one: both were in it, so each
  began before the other ended. ``apply`` is one apply to a variable and the next on its host.
- ``staleness``, a row a gradient applied on a parameter server: ``op`` (row of ``ops``), ``step``,
  ``variable`` (the applying op's name where no one said), ``read_version``, ``applied_version``,
  ``staleness`` (applies by others between read and apply; null where not exact).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from otel_tf.profiler.markers import linkage
    from otel_tf.profiler.pipeline import Profile, profile

__all__ = ["Profile", "linkage", "profile"]


def __getattr__(name: str) -> Any:
    # numpy and pyarrow only where something is read.
    if name == "linkage":
        from otel_tf.profiler.markers import linkage

        return linkage
    if name in ("profile", "Profile"):
        import importlib

        return getattr(importlib.import_module("otel_tf.profiler.pipeline"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

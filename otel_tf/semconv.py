"""Every span, attribute, event and metric name that otel-tf writes or reads.

Names of OpenTelemetry's own conventions are repeated here only where both the
writer and the correlator need them, so that neither imports the other's stack.
"""

from __future__ import annotations

from typing import Final

SCOPE: Final = "otel_tf"

# -- spans ---------------------------------------------------------------------
SPAN_STEP: Final = "step"
SPAN_TRAIN_STEP: Final = "train_step"
SPAN_CLOSURE: Final = "closure"
SPAN_DISPATCH: Final = "dispatch"
SPAN_EXECUTE: Final = "execute"  # a closure that trains nothing: evaluation, resources
SPAN_CLOCK_PROBE: Final = "clock.probe"
SPAN_DATA_WAIT: Final = "data_wait"
SPAN_TRACE_FUNCTION: Final = "trace_function"
SPAN_COLLECTIVE: Final = "collective"
SPAN_CHECKPOINT_SAVE: Final = "checkpoint.save"
SPAN_CHECKPOINT_RESTORE: Final = "checkpoint.restore"
SPAN_EVALUATE: Final = "evaluate"
SPAN_PREDICT: Final = "predict"
SPAN_EPOCH: Final = "epoch"
SPAN_SESSION_RECREATE: Final = "session.recreate"
SPAN_REGION: Final = "region"
SPAN_TRACE_REGION: Final = "trace_region"
SPAN_PROFILE_CAPTURE: Final = "profile.capture"
SPAN_FUNCTION_RUN: Final = "function_run"
SPAN_PROFILE: Final = "profile"

# -- resource ------------------------------------------------------------------
SERVICE_NAME: Final = "service.name"
SERVICE_INSTANCE_ID: Final = "service.instance.id"
HOST_NAME: Final = "host.name"
HOST_ID: Final = "host.id"
PROCESS_PID: Final = "process.pid"
PROCESS_CREATION_TIME: Final = "process.creation.time"
TENSORFLOW_VERSION: Final = "tensorflow.version"
RUN_ID: Final = "tensorflow.run.id"
STRATEGY: Final = "tensorflow.strategy"
TASK_TYPE: Final = "tensorflow.task.type"
TASK_INDEX: Final = "tensorflow.task.index"
CLUSTER_SIZE: Final = "tensorflow.cluster.size"
CLOCK_DOMAIN: Final = "tensorflow.clock.domain"

# -- attributes of every span of a step ------------------------------------------
GLOBAL_STEP: Final = "tensorflow.global_step"
WORKER: Final = "tensorflow.worker"
SEQ: Final = "tensorflow.seq"
MONOTONIC_NS: Final = "tensorflow.monotonic_ns"

# -- steps -----------------------------------------------------------------------
LOCAL_STEP: Final = "tensorflow.local_step"
EPOCH: Final = "tensorflow.epoch"
BATCH: Final = "tensorflow.batch"
STEPS_PER_EXECUTION: Final = "tensorflow.steps_per_execution"
STEP_STREAM: Final = "tensorflow.step.stream"
STEP_REWOUND_FROM: Final = "tensorflow.step.rewound_from"
STEP_SLOWDOWN: Final = "tensorflow.step.slowdown"
STEP_BEFORE: Final = "tensorflow.step.before"
STEP_AFTER: Final = "tensorflow.step.after"
FUNCTION_NAME: Final = "tensorflow.function.name"
FUNCTION_TRACING_COUNT: Final = "tensorflow.function.tracing_count"
FUNCTION_SIGNATURE: Final = "tensorflow.function.signature"
EVENT_RETRACING_STORM: Final = "retracing_storm"
STORM_TRACINGS: Final = "tensorflow.function.storm.tracings"
STORM_CALLS: Final = "tensorflow.function.storm.calls"
CHECKPOINT_PATH: Final = "tensorflow.checkpoint.path"
SESSION_CAUSE: Final = "tensorflow.session.cause"

# -- parameter-server closures -----------------------------------------------------
CLOSURE_ID: Final = "tensorflow.closure.id"
CLOSURE_ATTEMPT: Final = "tensorflow.closure.attempt"
CLOSURE_ATTEMPTS: Final = "tensorflow.closure.attempts"
CLOSURE_QUEUE_TIME: Final = "tensorflow.closure.queue_time"  # s
CLOSURE_DUPLICATE: Final = "tensorflow.closure.duplicate_effect_possible"
STALENESS: Final = "tensorflow.staleness"
STALENESS_SOURCE: Final = "tensorflow.staleness.source"  # SOURCE_COORDINATOR | SOURCE_PROFILE
TIME_SOURCE: Final = "tensorflow.time.source"  # SOURCE_WORKER | SOURCE_COORDINATOR | SOURCE_RELATIVE
SOURCE_WORKER: Final = "worker"
SOURCE_COORDINATOR: Final = "coordinator"
SOURCE_PROFILE: Final = "profile"
SOURCE_RELATIVE: Final = "relative"
PROBE_PEER: Final = "tensorflow.probe.peer"

# -- errors --------------------------------------------------------------------------
ERROR_TYPE: Final = "error.type"
ERROR_ORIGIN_WORKER: Final = "tensorflow.error.origin.worker"
ERROR_KIND: Final = "tensorflow.error.kind"
ERROR_TEXT: Final = "tensorflow.error.text"
ERROR_LABEL: Final = "tensorflow.error.label"
ERROR_VALUES: Final = "tensorflow.error.values"
ERROR_OP: Final = "tensorflow.error.op"
ERROR_NODE: Final = "tensorflow.error.node"
ERROR_DEVICE: Final = "tensorflow.error.device"
ERROR_REPLICA: Final = "tensorflow.error.replica"
ERROR_DERIVED: Final = "tensorflow.error.derived"
ERROR_STACK: Final = "tensorflow.error.stack"
ERROR_ROOTS: Final = "tensorflow.error.roots"
ERROR_PAYLOADS: Final = "tensorflow.error.payloads"
ERROR_EXPLANATION: Final = "tensorflow.error.explanation"
EVENT_ROOT_ERROR: Final = "tensorflow.error.root"

# -- tensors of a step that failed, and watched ones ---------------------------------------
FAILURE_FILE: Final = "tensorflow.failure.file"
FAILURE_LINE: Final = "tensorflow.failure.line"
FAILURE_TENSORS: Final = "tensorflow.failure.tensors"
FAILURE_SPOILED: Final = "tensorflow.failure.spoiled"
FAILURE_LEFT_OUT: Final = "tensorflow.failure.left_out"
FAILURE_CAPTURE_TIME: Final = "tensorflow.failure.capture_time"  # s
EVENT_TENSOR: Final = "tensor.summary"
TENSOR_NAME: Final = "tensorflow.tensor.name"
TENSOR_GROUP: Final = "tensorflow.tensor.group"
TENSOR_SHAPE: Final = "tensorflow.tensor.shape"
TENSOR_DTYPE: Final = "tensorflow.tensor.dtype"
TENSOR_DEVICE: Final = "tensorflow.tensor.device"
TENSOR_SIZE: Final = "tensorflow.tensor.size"
TENSOR_NAN: Final = "tensorflow.tensor.nan"
TENSOR_INF: Final = "tensorflow.tensor.inf"
TENSOR_MIN: Final = "tensorflow.tensor.min"
TENSOR_MAX: Final = "tensorflow.tensor.max"
TENSOR_MEAN: Final = "tensorflow.tensor.mean"
TENSOR_NORM: Final = "tensorflow.tensor.norm"
TENSOR_PROBLEM: Final = "tensorflow.tensor.problem"
EVENT_WATCH: Final = "tensor.watch"
WATCH_SUMMARIES: Final = "tensorflow.watch.summaries"

# -- what the program writes with tf.summary -----------------------------------------------
SPAN_SUMMARY: Final = "summary"
EVENT_SCALAR: Final = "summary.scalar"
EVENT_HISTOGRAM: Final = "summary.histogram"
SUMMARY_TAG: Final = "tensorflow.summary.tag"
SUMMARY_STEP: Final = "tensorflow.summary.step"
SUMMARY_VALUE: Final = "tensorflow.summary.value"
SUMMARY_BUCKETS: Final = "tensorflow.summary.buckets"
SUMMARY_LOGDIR: Final = "tensorflow.summary.logdir"
SUMMARY_LEFT_OUT: Final = "tensorflow.summary.left_out"

# -- exceptions ----------------------------------------------------------------------------
EVENT_EXCEPTION: Final = "exception"
EXCEPTION_TYPE: Final = "exception.type"
EXCEPTION_MESSAGE: Final = "exception.message"
EXCEPTION_STACKTRACE: Final = "exception.stacktrace"

# -- log records ---------------------------------------------------------------------
LOG_IOSTREAM: Final = "log.iostream"  # stderr, for what came through the process's stderr
CODE_FILE_PATH: Final = "code.file.path"
CODE_LINE_NUMBER: Final = "code.line.number"

# -- collectives -----------------------------------------------------------------------
COLLECTIVE_GROUP_KEY: Final = "tensorflow.collective.group_key"
COLLECTIVE_INSTANCE_KEY: Final = "tensorflow.collective.instance_key"
COLLECTIVE_WAIT: Final = "tensorflow.collective.wait"  # s

# -- regions and profiles ------------------------------------------------------------------
REGION_NAME: Final = "tensorflow.region.name"
REGION_SCOPE: Final = "tensorflow.region.scope"
PROFILER_SESSION: Final = "tensorflow.profiler.session"
PROFILE_REASON: Final = "tensorflow.profile.reason"  # every | slow | request
PROFILE_TASKS: Final = "tensorflow.profile.tasks"
PROFILE_SIZE: Final = "tensorflow.profile.size"  # By

# -- ops, from profiles --------------------------------------------------------------------
OP_NAME: Final = "tensorflow.op.name"
OP_TYPE: Final = "tensorflow.op.type"
DEVICE: Final = "tensorflow.device"
STEP_WORKER: Final = "tensorflow.step.worker"
PROFILER_STEP_ID: Final = "tensorflow.profiler.step_id"
PROFILER_GROUP_ID: Final = "tensorflow.profiler.group_id"
PROFILER_CORRELATION_ID: Final = "tensorflow.profiler.correlation_id"
PROFILER_RUN_ID: Final = "tensorflow.profiler.run_id"
PROFILER_CONTEXT_ID: Final = "tensorflow.profiler.context_id"
OMITTED_OPS: Final = "tensorflow.profiler.omitted.ops"
OMITTED_TYPES: Final = "tensorflow.profiler.omitted.types"
OMITTED_COUNTS: Final = "tensorflow.profiler.omitted.counts"
OMITTED_DURATIONS: Final = "tensorflow.profiler.omitted.durations"  # s

# -- spans that the correlator writes back ------------------------------------------------
LOGICAL_SERVICE_SUFFIX: Final = ".logical"
LOGICAL_ORDER: Final = "tensorflow.logical.order"
LOGICAL_SHIFT_NS: Final = "tensorflow.logical.shift_ns"
LOGICAL_ERROR_NS: Final = "tensorflow.logical.error_ns"
LOGICAL_ORIGINAL_TRACE: Final = "tensorflow.logical.original.trace_id"
LOGICAL_ORIGINAL_SPAN: Final = "tensorflow.logical.original.span_id"
LOGICAL_ORIGINAL_CLOCK: Final = "tensorflow.logical.original.clock.domain"
SPAN_STEPS: Final = "steps"  # root of a window of asynchronous steps
JAEGER_WARNINGS: Final = "@jaeger@warnings"

# -- metrics ---------------------------------------------------------------------------------
METRIC_STEP_DURATION: Final = "tensorflow.step.duration"  # s
METRIC_DATA_WAIT_DURATION: Final = "tensorflow.data_wait.duration"  # s
METRIC_STALENESS: Final = "tensorflow.staleness"  # {step}
METRIC_WATCH_VALUE: Final = "tensorflow.watch.value"
METRIC_FUNCTION_TRACINGS: Final = "tensorflow.function.tracings"  # {tracing}
METRIC_COLLECTIVE_WAIT: Final = "tensorflow.collective.wait"  # s
METRIC_WORKER_LAG: Final = "tensorflow.worker.lag"  # {step}
METRIC_SPANS_DROPPED: Final = "otel_tf.spans.dropped"  # {span}
METRIC_SPOOL_SIZE: Final = "otel_tf.spool.size"  # By

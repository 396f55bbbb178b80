"""otel-tf makes a distributed TensorFlow job explain itself.

`instrument` turns training steps into OpenTelemetry spans; `correlate` puts the spans of all workers of
a run into one causal order, with the clocks corrected. Importing this package imports neither
TensorFlow nor any other heavy library.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from otel_tf._watch import watch, watched

if TYPE_CHECKING:
    from contextlib import AbstractContextManager
    from typing import SupportsIndex

    from otel_tf.correlator import Result
    from otel_tf.instrumentation.attach import Handle
    from otel_tf.instrumentation.regions import Region
    from otel_tf.logs.native import NativeLogs

__all__ = [
    "__version__",
    "capture_native_logs",
    "correlate",
    "instrument",
    "keras_callback",
    "session_run_hook",
    "step",
    "trace",
    "uninstrument",
    "watch",
    "watched",
]

__version__ = "0.1.0"


def instrument(strategy: Any = None, *, tracer_provider: Any = None, **settings: Any) -> Handle:
    """Turns the training steps of this process, and of the workers it coordinates, into spans.

    Args:
        strategy: The `tf.distribute.Strategy` that trains; default: whatever runs.
        tracer_provider: An SDK ``TracerProvider`` to use; default: the global one if it is set, else one
            of our own, configured by the ``OTEL_*`` variables.
        **settings: Any field of `otel_tf.config.Settings`, such as ``run_id`` or ``run_dir``.

    Raises:
        UserError: A setting that does not exist, or a run id that cannot name a folder.
        DidNotInstrument: The installed TensorFlow is not one we know.
    """
    from otel_tf.instrumentation import attach

    return attach.instrument(strategy, tracer_provider=tracer_provider, **settings)


def step(number: SupportsIndex | None = None) -> AbstractContextManager[None]:
    """Surrounds one training step of a loop that otel-tf cannot see into: ``with otel_tf.step(n):``.

    The block is the root `step`. A training `tf.function` that runs inside is the same step, not a second
    one, and its time is `train_step`'s; so is a step declared inside another. Where nothing is
    instrumented this does nothing.

    Args:
        number: The step's number; default: counted.
    """
    attach = sys.modules.get("otel_tf.instrumentation.attach")
    if attach is None:
        import contextlib

        return contextlib.nullcontext()
    declared: AbstractContextManager[None] = attach.step(number)
    return declared


def trace(name: str) -> Region:
    """Names the operations of a block or a function: ``with otel_tf.trace("attention"):``.

    Around code that builds a graph it is a name scope, which costs nothing when the graph runs: by it the
    region's ops, forward and gradient, are found in any profile. Around eager code it is a span. Results,
    random seeds and names of variables stay as they are; where nothing is instrumented that is all.

    Args:
        name: Letters, digits and ``_.-/``; few different ones in a program.

    Raises:
        UserError: Not such a name.
    """
    from otel_tf.instrumentation.regions import Region

    return Region(name)


def keras_callback(**settings: Any) -> Any:
    """Returns a callback for ``fit``, ``evaluate`` and ``predict`` of Keras 3 and of tf_keras.

    For those who would rather pass a callback than call `instrument`, beside which it does nothing. A step
    that raises has no span: Keras calls no callback then.

    Args:
        **settings: As for `instrument`.
    """
    from otel_tf.instrumentation.keras.callback import make_callback

    return make_callback(settings)


def session_run_hook(**settings: Any) -> Any:
    """Returns a `SessionRunHook` for the monitored sessions of TensorFlow 1.

    For those who would rather pass a hook than call `instrument`, beside which it does nothing. A run that
    raises has no span: TensorFlow calls no hook then.

    Args:
        **settings: As for `instrument`.
    """
    from otel_tf.instrumentation.session.hook import StepHook

    return StepHook(settings)


def uninstrument() -> None:
    """Undoes `instrument`; does nothing where it was not called."""
    attach = sys.modules.get("otel_tf.instrumentation.attach")
    if attach is not None:
        attach.uninstrument()


def capture_native_logs(**settings: Any) -> NativeLogs | None:
    """Captures what this process writes to stderr, C++ included; before TensorFlow is imported.

    It still appears there, in order and at once; see `otel_tf.logs.native.capture_native_logs`.
    """
    from otel_tf.logs.native import capture_native_logs as capture

    return capture(**settings)


def correlate(source: str, **options: Any) -> Result:
    """Orders the spans of a run by logical step and cause; see `otel_tf.correlator.correlate`."""
    from otel_tf.correlator import correlate as run

    return run(source, **options)

"""The seam in Keras 3 and in tf_keras, whichever is imported, whenever it is."""

from __future__ import annotations

import logging
import sys
import weakref
from types import ModuleType
from typing import Any

import wrapt

from otel_tf._guard import Guard, is_strict
from otel_tf.errors import DidNotInstrument
from otel_tf.instrumentation.checkpoint import CheckpointSeam
from otel_tf.instrumentation.hidden_frames import leave_out_of_tracebacks
from otel_tf.instrumentation.keras.loops import KerasLoops
from otel_tf.instrumentation.run_spans import RunSpans
from otel_tf.instrumentation.seams import Seam, Seams, Wrapper
from otel_tf.instrumentation.steps import Steps

__all__ = ["KerasSeam"]

_logger = logging.getLogger("otel_tf")


class KerasSeam(Seam):
    """Wraps the loops of each Keras and what saves its models."""

    def __init__(self, steps: Steps, run_spans: RunSpans, checkpoints: CheckpointSeam) -> None:
        self._loops = KerasLoops(steps, run_spans)
        self._checkpoints = checkpoints
        self._seams: Seams | None = None

    def attach(self, seams: Seams) -> None:
        """Wraps what is imported already; the rest when it is."""
        self._seams = seams
        for name in _WAYS:
            if name in sys.modules:
                self.wrap(name)
            elif name not in _hooked:
                _hooked.add(name)
                wrapt.register_post_import_hook(_imported, name)
        _attached.add(self)

    def detach(self) -> None:
        """Leaves alone what is imported later."""
        self._seams = None

    def wrap(self, name: str) -> None:
        """Wraps one Keras.

        Args:
            name: The module that was imported.

        Raises:
            DidNotInstrument: This version is not one we know; only under test. A program that does not
                use Keras's loops loses nothing.
        """
        if self._seams is None:
            return
        try:
            _WAYS[name](self, self._seams)
        except (DidNotInstrument, ImportError, AttributeError) as error:
            if is_strict():
                raise
            _logger.warning("the loops of this %s are not recorded: %s", name.partition(".")[0], error)

    def wrap_keras_3(self, seams: Seams) -> None:
        """Wraps Keras 3, where TensorFlow is its backend."""
        from keras.src import backend
        from keras.src.backend.tensorflow.trainer import TensorFlowTrainer
        from keras.src.callbacks.callback_list import CallbackList
        from keras.src.models.model import Model
        from keras.src.utils import traceback_utils

        if backend.backend() != "tensorflow":
            return
        loops = self._loops
        seams.wrap(TensorFlowTrainer, "fit", loops.fit_of_keras_3)
        self._wrap(seams, TensorFlowTrainer, CallbackList, Model)
        leave_out_of_tracebacks(seams, traceback_utils)

    def wrap_tf_keras(self, seams: Seams) -> None:
        """Wraps tf_keras, which is Keras 2."""
        from tf_keras.src.callbacks import CallbackList
        from tf_keras.src.engine.data_adapter import DataHandler
        from tf_keras.src.engine.training import Model
        from tf_keras.src.utils import traceback_utils

        loops = self._loops
        seams.wrap(Model, "fit", loops.fit)
        seams.wrap(DataHandler, "steps", loops.steps_of_handler)
        self._wrap(seams, Model, CallbackList, Model)
        leave_out_of_tracebacks(seams, traceback_utils)

    def _wrap(self, seams: Seams, trainer: Any, callbacks: Any, model: Any) -> None:
        loops = self._loops
        seams.wrap(trainer, "evaluate", loops.evaluate)
        seams.wrap(trainer, "predict", loops.predict)
        seams.wrap(trainer, "train_on_batch", loops.train_on_batch)
        seams.wrap(callbacks, "on_epoch_begin", loops.epoch_begin)
        seams.wrap(callbacks, "on_epoch_end", loops.epoch_end)
        seams.wrap(callbacks, "on_train_batch_begin", loops.batch_begin)
        seams.wrap(callbacks, "on_train_batch_end", loops.batch_end)
        save, restore = _with_path(self._checkpoints.save), _with_path(self._checkpoints.restore)
        seams.wrap(model, "save", save)
        seams.wrap(model, "save_weights", save)
        seams.wrap(model, "load_weights", restore)


def _with_path(surround: Any) -> Wrapper:
    """Returns a wrapper of a method whose first argument is a path."""

    def wrapper(wrapped: Any, _: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return surround(wrapped, args, kwargs, args[0] if args else kwargs.get("filepath"))

    return wrapper


#: By the module that brings all that is wrapped. Not by the package: Keras may be in the middle of its own
#: import when it imports TensorFlow, and that is when we may be called.
_WAYS = {
    "keras.src.models.model": KerasSeam.wrap_keras_3,
    "tf_keras.src.engine.training": KerasSeam.wrap_tf_keras,
}
_attached: weakref.WeakSet[KerasSeam] = weakref.WeakSet()
#: Modules that are watched for; a hook cannot be taken back.
_hooked: set[str] = set()


def _imported(module: ModuleType) -> None:
    with Guard("wrapping a Keras that was just imported"):
        for seam in list(_attached):
            seam.wrap(module.__name__)

"""A coordinator program for the tests: a failure is looked at while the parameter server does not answer.

Prints ``{"step": 1}`` when all is set up, and goes on once the file that it is given is there. TensorFlow
itself waits for ever in a closure then, so the failure is one of Python's.
"""

from __future__ import annotations

import itertools
import json
import os
import sys
import time
from pathlib import Path

import numpy as np
import tensorflow as tf

import otel_tf
from otel_tf.instrumentation.failure.call import FailedCall
from otel_tf.instrumentation.failure.tensors import arrays, variables_of


def main() -> None:
    strategy = tf.distribute.ParameterServerStrategy(tf.distribute.cluster_resolver.TFConfigClusterResolver())
    handle = otel_tf.instrument(strategy)
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    with strategy.scope():
        weight = tf.Variable([1.0, 2.0], name="weight")
    coordinator.schedule(tf.function(lambda: weight.assign_sub([0.1, 0.1])))
    coordinator.join()
    print(json.dumps({"step": 1}), flush=True)
    while not Path(sys.argv[1]).exists():
        time.sleep(0.05)
    error, steps = ValueError("the program's own"), handle.core.steps
    steps.around.failed = FailedCall(
        error, tensors=lambda: itertools.chain(arrays("batch", [np.ones(3)]), variables_of([weight]))
    )
    begun = time.monotonic()
    described = steps.problem(error, 3)
    took_s = time.monotonic() - begun
    attributes = {name: value for name, value in described.attributes.items() if "failure" in name}
    print(json.dumps({**attributes, "took_s": took_s}), flush=True)
    # TensorFlow would wait for the parameter server at the end.
    os._exit(0)


if __name__ == "__main__":
    main()

"""The profiler's side of training: events that carry the spans' ids, and when profiles are taken.

Reading profiles needs no TensorFlow and is done elsewhere, in `otel_tf.profiler`.
"""

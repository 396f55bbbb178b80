"""The seams in TensorFlow: the only package of otel-tf that imports it.

One file a seam; each attaches through `otel_tf.instrumentation.seams.Seams`, whose ``undo`` puts the
identical original back.
"""

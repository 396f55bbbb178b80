"""`otel_tf.watch`: the last summaries of a tensor, kept where the tensor lives."""

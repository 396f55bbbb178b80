"""`otel_tf.trace("attention")`: the operations that a user cares about, under a name.

Around code that builds a graph a region is a name scope, so it costs nothing when the graph runs and adds no
op: results, seeds of random ops and names of variables stay as they are. Around eager code it is a span
`region` and an event in the profile of whoever takes one.

**How a region is found in a profile.** The name of an op is a path, ``a/b/op:OpType``; a region's scope is a
path as well. An op belongs to a region when the components of the scope occur in those of the op's name, in
their order and without a gap, before the last one; of several such regions to the one with the longest
scope, and the others, whose scopes are its beginnings, are around it. So

    attention/MatMul:MatMul                                            forward
    gradient_tape/attention/MatMul/MatMul:MatMul                       gradient, of `tf.GradientTape`
    gradients/attention/MatMul_grad/MatMul:MatMul                      gradient, of `tf.gradients`
    StatefulPartitionedCall/gradient_tape/attention/ReluGrad:ReluGrad  in a function that another one calls
    replica_1/attention/MatMul:MatMul                                  on a replica of MirroredStrategy

all belong to the region whose scope is ``attention``. TensorFlow makes names unique: the second time in one
graph it is ``attention_1``, a scope of its own with the same region's name. A fused kernel has the name of
one of its ops.

**Where the regions stand.** Each time that one is built into a graph leaves a span `trace_region` in the
run's own trace, below the `trace_function` of its graph and below the region around it, with the attributes
``tensorflow.region.name`` (``attention``), ``tensorflow.region.scope`` (``encoder/attention_1``: what to look
for) and ``tensorflow.function.name`` (the graph's function; none in a graph of TensorFlow 1). A retraced
function leaves them again.

In eager code a `region` span carries ``tensorflow.region.name``; it is below the step that the loop has
declared, or else in the run's trace. The event in the profile has the region's name and ``otel_span``
(``s-<16 hex>``); outside of a step ``otel_trace`` (``t-<32 hex>``) too, inside one the step's event is around
it.

This module imports TensorFlow only where the program has.
"""

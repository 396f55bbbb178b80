"""What some of TensorFlow's refusals mean, in plain words."""

from __future__ import annotations

from otel_tf.diagnostics.messages import RootError

__all__ = ["explain"]

#: Ops that `tf.debugging.enable_check_numerics` adds.
_CHECKS_OF_ALL = ("DebugNumericSummaryV2", "CheckNumericsV2", "DebugIdentityV2")


def explain(root: RootError) -> str | None:
    """Returns what an error means and what to do about it; None where the message says it itself."""
    if root.kind == "xla":
        return _refused(root)
    if root.kind == "peer_lost":
        who = root.worker or "another task"
        return (
            f"{who} stopped answering: it crashed, was killed or hangs. The failure here only follows; the "
            f"cause is in the last lines of the log of {who}, or with whoever ended it."
        )
    if root.returned is not None:
        return (
            f"The op itself returned {root.returned}. TensorFlow replaces this code, for it takes it for a "
            "broken connection and would try again; a code of its own (INTERNAL, FAILED_PRECONDITION, …) "
            "says more."
        )
    return None


def _refused(root: RootError) -> str:
    if root.op in _CHECKS_OF_ALL:
        return (
            "tf.debugging.enable_check_numerics() adds ops that XLA cannot compile: take jit_compile=True "
            "away while you look for the NaN, or watch single tensors with otel_tf.watch, which XLA takes."
        )
    what = f"the op {root.op}" if root.op else "an op of the function"
    where = f", made at {root.stack[-1]}," if root.stack else ""
    return (
        f"jit_compile=True asks XLA to compile the whole function, and XLA has no {what.removeprefix('the ')}"
        f"{where} on this device. Move it out of the compiled function (strings, queues, tf.print, "
        "tf.py_function, look-ups and ops whose output's shape depends on values belong outside), or leave "
        "jit_compile away."
    )

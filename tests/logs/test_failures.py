"""What a text says of an error."""

from __future__ import annotations

import pytest

from otel_tf.logs.failures import Failure, is_benign, read_failure
from otel_tf.logs.severity import ERROR, INFO, WARN

OOM = (
    "Graph execution error:\n\nDetected at node MatMul defined at (most recent call last):\n"
    '  File "t.py", line 3, in step\n\nOOM when allocating tensor with shape[8,8] and type float on '
    "/job:worker/replica:0/task:1/device:GPU:0 by allocator GPU_0_bfc"
    "\n\t [[{{node MatMul}}]] [Op:__inference_f_3]"
)


@pytest.mark.parametrize(
    ("text", "severity", "expected"),
    [
        (
            f"failed with ResourceExhaustedError():{OOM}",
            ERROR,
            Failure(
                "RESOURCE_EXHAUSTED",
                "OOM when allocating tensor with shape[8,8] and type float on "
                "/job:worker/replica:0/task:1/device:GPU:0 by allocator GPU_0_bfc",
                "MatMul",
                "worker:1",
                "/job:worker/replica:0/task:1/device:GPU:0",
                False,
            ),
        ),
        (
            "Local rendezvous is aborting with status: CANCELLED: gone",
            WARN,
            Failure("CANCELLED", "gone", None, None, None, True),
        ),
        (
            "Worker /job:worker/replica:0/task:1 failed with UnavailableError():Socket closed\n"
            "Additional GRPC error information from remote target /job:ps/replica:0/task:0 while calling:",
            ERROR,
            Failure("UNAVAILABLE", "Socket closed", None, "ps:0", None, False),
        ),
        (
            'Traceback (most recent call last):\n  File "a.py", line 1\npkg.mine.BadError: it broke',
            ERROR,
            Failure("pkg.mine.BadError", "it broke", None, None, None, False),
        ),
        ("something went wrong", ERROR, Failure("ERROR", "something went wrong", None, None, None, False)),
        ("INVALID_ARGUMENT: only said", WARN, None),
        ("a plain line", INFO, None),
    ],
    ids=["oom", "cancelled", "remote target", "traceback", "any error", "a status in passing", "plain"],
)
def test_failures(text: str, severity: int, expected: Failure | None) -> None:
    assert read_failure(text, severity) == expected


@pytest.mark.parametrize(
    "text",
    [
        "BaseCollectiveExecutor::StartAbort OUT_OF_RANGE: End of sequence",
        "failed call to cuInit: INTERNAL: CUDA error: Failed call to cuInit: UNKNOWN ERROR (303)",
        "Allocator (GPU_0_bfc) ran out of memory trying to allocate 3.72GiB. The caller indicates that this "
        "is not a failure, but may mean that there could be performance gains if more memory were available.",
    ],
)
def test_what_only_sounds_like_one(text: str) -> None:
    assert is_benign(text)
    assert read_failure(text, ERROR) is None

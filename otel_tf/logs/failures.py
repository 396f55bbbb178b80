"""Errors in texts: what failed, which op, on whose task, and whether it only follows from another failure.

TensorFlow passes errors on as text, wrapped on every hop. The innermost remote target that a text names is
where the error began; what says of itself that it is derived, or was cancelled, follows from another one.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from otel_tf.logs.severity import ERROR

__all__ = ["Failure", "code_of", "is_benign", "read_failure"]

_CODES = (
    "CANCELLED|UNKNOWN|INVALID_ARGUMENT|DEADLINE_EXCEEDED|NOT_FOUND|ALREADY_EXISTS|PERMISSION_DENIED|"
    "UNAUTHENTICATED|RESOURCE_EXHAUSTED|FAILED_PRECONDITION|ABORTED|OUT_OF_RANGE|UNIMPLEMENTED|INTERNAL|"
    "UNAVAILABLE|DATA_LOSS"
)
#: Classes of `tf.errors` whose names are not their code's.
_CLASSES = {
    "InvalidArgumentError": "INVALID_ARGUMENT",
    "DeadlineExceededError": "DEADLINE_EXCEEDED",
    "NotFoundError": "NOT_FOUND",
    "AlreadyExistsError": "ALREADY_EXISTS",
    "PermissionDeniedError": "PERMISSION_DENIED",
    "UnauthenticatedError": "UNAUTHENTICATED",
    "ResourceExhaustedError": "RESOURCE_EXHAUSTED",
    "FailedPreconditionError": "FAILED_PRECONDITION",
    "AbortedError": "ABORTED",
    "OutOfRangeError": "OUT_OF_RANGE",
    "UnimplementedError": "UNIMPLEMENTED",
    "InternalError": "INTERNAL",
    "UnavailableError": "UNAVAILABLE",
    "DataLossError": "DATA_LOSS",
    "CancelledError": "CANCELLED",
    "UnknownError": "UNKNOWN",
}

#: A status as C++ prints it, `CODE: message`; in older versions `Resource exhausted: message`.
_STATUS = re.compile(rf"(?:^|[\s:(])({_CODES}): (?=\S)")
_OLD_STATUS = re.compile(
    r"(?:^|[\s:])(Cancelled|Invalid argument|Deadline exceeded|Not found|Resource exhausted|"
    r"Failed precondition|Aborted|Out of range|Unimplemented|Internal|Unavailable|Data loss): (?=\S)"
)
_CLASS = re.compile(
    r"\b((?:[A-Za-z_]\w*\.)*)([A-Z]\w*(?:Error|Exception|Interrupt|Exit))(?:\(\))?(?::\s?|$)", re.MULTILINE
)
_REMOTE_TARGET = re.compile(r"remote target /job:(\w+)/replica:\d+/task:(\d+)")
_REPORTED = re.compile(r"Error reported from /job:(\w+)(?:/replica:\d+)?/task:(\d+)")
_NAMED = re.compile(
    r"(?:Worker )?/job:(\w+)(?:/replica:\d+)?/task:(\d+) (?:failed with|encountered the following error)"
)
_DEVICE = re.compile(r"(?:on|device:|device) \"?((?:/job:(\w+)/replica:\d+/task:(\d+)/)?device:\w+:\d+)")
_NODE = re.compile(r"\{\{node ([^}]+)\}\}")
_AT_NODE = re.compile(r"Detected at node '?([\w/.\-]+)'?")
_OP = re.compile(r"\[Op:(\w+)\]")
#: The message's own line stands before the node that it names.
_BEFORE_NODE = re.compile(r"\n *([^\n]*\S)\n\s*\[\[\{\{(?:function_)?node ")
_PAYLOAD = re.compile(r" ?\[type\.googleapis\.com/[^\]]*\]$")
_ROOTS = re.compile(r"\d+ root error\(s\) found")
_FIRST_ROOT = re.compile(r"\(0\) ([A-Za-z_ ]+): ([^\n]+)")

_DERIVED = re.compile(
    r"_Derived_|tensorflow\.DerivedStatus|DerivedStatus=|Start cancelling closures due to error|"
    r"Aborting RingReduce|Aborting RingGather|Collective ops is aborted by|"
    r"(?:rendezvous is|Local rendezvous is) aborting|could be from a previous operation|"
    r"Function was cancelled before it was started|closure was cancelled|Step was cancelled"
)
_BENIGN = re.compile(
    r"End of sequence|The caller indicates that this is not a failure|Ignoring (?:an? )?error|"
    r"failed call to cuInit|Could not find cuda drivers|Unable to register cu\w+ factory|"
    r"Attempting to register factory for plugin cu|All log messages before absl::InitializeLog"
)
_LONGEST_MESSAGE = 2000


class Failure(NamedTuple):
    """What a text says of an error.

    Attributes:
        error_type: TensorFlow's code, such as ``RESOURCE_EXHAUSTED``, or the exception's class.
        message: The message itself, without what was wrapped around it.
        op: The node or op that failed.
        worker: The task where it began, as far as the text names it.
        device: The device, where it is about one.
        derived: Whether it only follows from another failure.
    """

    error_type: str
    message: str
    op: str | None
    worker: str | None
    device: str | None
    derived: bool


def code_of(name: str) -> str:
    """Returns TensorFlow's code for an exception's class or a status in words; ``name`` for any other."""
    code = _CLASSES.get(name.rpartition(".")[2])
    if code is not None:
        return code
    upper = name.upper().replace(" ", "_")
    return upper if re.fullmatch(_CODES, upper) else name


def is_benign(text: str) -> bool:
    """Returns whether a text sounds like an error and is none: a dataset's end, a missing GPU."""
    return _BENIGN.search(text) is not None


def read_failure(text: str, severity: int = ERROR, *, error_type: str | None = None) -> Failure | None:
    """Returns the error that a text tells of; None where it tells of none.

    Args:
        text: A log record's body, or an exception's message.
        severity: OTLP's number; below ERROR only a passed-on status counts.
        error_type: The code, where it is known.
    """
    if is_benign(text):
        return None
    derived = _DERIVED.search(text) is not None
    if error_type is None:
        found, message = _type_and_message(text)
        if found is None and severity < ERROR:
            return None
        if severity < ERROR and not derived:
            return None
        error_type = found or "ERROR"
    else:
        error_type = code_of(error_type)
        _, message = _type_and_message(text)
    worker, device = _whose(text)
    return Failure(
        error_type,
        _PAYLOAD.sub("", message.strip())[:_LONGEST_MESSAGE],
        _op(text),
        worker,
        device,
        derived or error_type == "CANCELLED",
    )


def _type_and_message(text: str) -> tuple[str | None, str]:
    """Returns the error's type, None where there is none, and its message."""
    if _ROOTS.search(text) and (match := _FIRST_ROOT.search(text)):
        return code_of(match[1]), match[2]
    classes = list(_CLASS.finditer(text))
    status = _STATUS.search(text)
    # Whichever begins first wraps the other; in a traceback it is the last class that was raised.
    if classes and text.startswith("Traceback"):
        match = _raised(classes, text)
        return code_of(match[1] + match[2] if match[1] and match[2] not in _CLASSES else match[2]), _core(
            text[match.end() :]
        )
    if status and (not classes or status.start() < classes[0].start()):
        return status[1], _core(text[status.end() :])
    if classes:
        return code_of(classes[0][2]), _core(text[classes[0].end() :])
    if match := _OLD_STATUS.search(text):
        return code_of(match[1]), _core(text[match.end() :])
    return None, _core(text)


def _raised(classes: list[re.Match[str]], text: str) -> re.Match[str]:
    """Returns where a traceback names the exception: at the front of a line, the last such."""
    at_front = [match for match in classes if match.start() == 0 or text[match.start() - 1] == "\n"]
    return (at_front or classes)[-1]


def _core(text: str) -> str:
    """Returns the message inside of what TensorFlow wraps around it."""
    if "Graph execution error:" in text or "Detected at node" in text:
        if match := _BEFORE_NODE.search(text):
            start = text.rfind("\n\n", 0, match.end(1))
            block = text[start + 2 : match.end(1)] if start >= 0 else match[1]
            # The block before the node; a status that was passed on says by whom first.
            text = block if len(block) < _LONGEST_MESSAGE else match[1]
    else:
        text = text.partition("\n\t [[")[0]
    for mark in ("Additional GRPC error information", "\n:UNKNOWN:", "[[{{node"):
        text = text.partition(mark)[0] or text
    text = re.sub(rf"^(?:Collective ops is aborted by: |({_CODES}): )+", "", text.strip())
    text = re.sub(r"^Error reported from /job:\S+: ", "", text)
    return text.partition(" [Op:")[0].strip()


def _whose(text: str) -> tuple[str | None, str | None]:
    """Returns the task where an error began, and the device, as far as the text names them."""
    device = match[1] if (match := _DEVICE.search(text)) else None
    for pattern in (_REMOTE_TARGET, _REPORTED, _NAMED):
        if hops := pattern.findall(text):
            return ":".join(hops[-1]), device
    if match and match[2] and match[2] != "localhost":
        return f"{match[2]}:{match[3]}", device
    return None, device


def _op(text: str) -> str | None:
    for pattern in (_NODE, _AT_NODE, _OP):
        if match := pattern.search(text):
            return match[1].strip()
    return None

"""Errors in texts: what failed, which op, on whose task, and whether it only follows from another failure.

A log line has TensorFlow's message somewhere inside of what somebody says about it. `diagnostics.messages`
takes the message apart; here is what is around it. What says of itself that it is derived, was cancelled, or
passes a status on, follows from another failure.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from otel_tf.diagnostics.messages import parse
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
_NAMED = re.compile(
    r"(?:Worker )?/job:(\w+)(?:/replica:\d+)?/task:(\d+) (?:failed with|encountered the following error)"
)
_AT_NODE = re.compile(r"Detected at node '?([\w/.\-]+)'?")
_CALLED = re.compile(r"\[Op:(\w+)\]")
_PAYLOAD = re.compile(r" ?\[type\.googleapis\.com/[^\]]*\]\s*$")

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
        severity: OTLP's number; below ERROR only a status that is passed on counts.
        error_type: The code, where it is known.
    """
    if is_benign(text):
        return None
    derived = _DERIVED.search(text) is not None
    found, message = _type_and_message(text)
    if error_type is None and severity < ERROR and not (derived and found):
        return None
    root = parse(_PAYLOAD.sub("", message)).first
    kind = code_of(error_type) if error_type else root.code or found or "ERROR"
    named = _NAMED.search(text)
    return Failure(
        kind,
        _plain(root.text) or text.partition("\n")[0][:_LONGEST_MESSAGE],
        root.node or root.op or _first(_AT_NODE, text) or _first(_CALLED, text),
        root.worker or (":".join(named.groups()) if named else None),
        root.device,
        derived or root.derived or kind == "CANCELLED",
    )


def _first(pattern: re.Pattern[str], text: str) -> str | None:
    match = pattern.search(text)
    return match[1] if match else None


def _type_and_message(text: str) -> tuple[str | None, str]:
    """Returns the error's type, None where there is none, and its message as it was raised."""
    classes = list(_CLASS.finditer(text))
    status = _STATUS.search(text)
    if classes and text.startswith("Traceback"):
        match = _raised(classes, text)
        name = match[2] if match[2] in _CLASSES or not match[1] else match[1] + match[2]
        return code_of(name), text[match.end() :]
    # Whichever begins first wraps the other.
    if status and (not classes or status.start() < classes[0].start()):
        return status[1], text[status.end() :]
    if classes:
        return code_of(classes[0][2]), text[classes[0].end() :]
    if match_old := _OLD_STATUS.search(text):
        return code_of(match_old[1]), text[match_old.end() :]
    return None, text


def _raised(classes: list[re.Match[str]], text: str) -> re.Match[str]:
    """Returns where a traceback names the exception: at the front of a line, the last such."""
    at_front = [match for match in classes if match.start() == 0 or text[match.start() - 1] == "\n"]
    return (at_front or classes)[-1]


def _plain(text: str) -> str:
    """Returns a message without what was said before it on its way."""
    text = re.sub(rf"^(?:Collective ops is aborted by: |(?:{_CODES}): )+", "", text.strip())
    text = re.sub(r"^Error reported from /job:\S+: ", "", text)
    text = text.partition("\nThe error could be from a previous operation")[0]
    return text[:_LONGEST_MESSAGE].strip()

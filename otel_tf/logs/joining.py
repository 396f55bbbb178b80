"""Records from lines: a line without a head belongs to the record before, or is a record of its own.

A head begins a record. What follows belongs to it if it is indented, or is one of the continuations that
TensorFlow and Python write: protobuf's text, the rest of a traceback, what gRPC adds to an error. Anything
else is plain output (a `print`, `tf.print`) and a record of its own.
"""

from __future__ import annotations

import dataclasses
import re

from otel_tf.logs.heads import NATIVE, PYTHON, TIMED, TRACEBACK, WARNING, Head

__all__ = ["Joiner", "Record"]

#: Longer records are cut: a dataset's graph may be printed whole.
MOST_BYTES = 64 << 10
MOST_LINES = 1000

_KNOWN = re.compile(
    r"To enable (?:them in other operations|the following instructions)"
    r"|Instructions for updating:"
    r"|Additional GRPC error information"
    r"|:\{\"created\"|:UNKNOWN:|:[A-Z_]+:"
    r"|The tasks? ha(?:s|ve) crashed|The error could be from a previous operation|Error reported from "
    r"|Detected at node |Detected at |Node: ?'|Caused by |Original stack trace for |Function call stack:"
    r"|\t ?\[\[\{\{|\s+\[\[|\[\[\{\{|\{\{(?:function_)?node "
    r"|\(\d+\) [A-Z][A-Za-z_ ]+: |\d+ root error\(s\) found|\d+ successful operations\."
    r"|\d+ derived errors ignored\.|assertion failed: |Hint: "
    r"|During handling of the above exception|The above exception was the direct cause"
)
_PROTO = re.compile(r"[a-z_]+ ?\{$|\}$|[a-z_]+: (?:\"|-?\d|[A-Z][A-Z_]+$|true$|false$)")
_PROPERTY = re.compile(r"/job:|\w[\w ]*: ?\S")
#: The last line of a traceback: the exception.
_EXCEPTION = re.compile(r"[A-Za-z_][\w.]*(?:Error|Exception|Exit|Interrupt|Warning|Iteration|Group)(?::|$)")
_GRAPH_ERROR = "Graph execution error:"
#: Where TensorFlow's message of an error ends.
_END_OF_ERROR = re.compile(r"\[Op:\w*\](?: name: \S*)?$")


@dataclasses.dataclass(slots=True)
class Record:
    """One record: its head, and how many lines it has.

    Attributes:
        head: The head; None for plain output.
        text: The message, all lines of it.
        lines: How many lines.
    """

    head: Head | None
    text: str
    lines: int = 1


class Joiner:
    """Joins the lines of one source, in order.

    Feed it lines; `add` returns the record that a line ended, if any, and `end` the last one.
    """

    def __init__(self) -> None:
        self._record: Record | None = None
        self._parts: list[str] = []
        self._bytes = 0
        self._awaits = False  # the rest of what a line announced
        self._ended = False  # by a blank line, or the end of an error
        self._within = False  # an error's message, in which anything may stand
        self._exception_seen = False

    @property
    def open(self) -> bool:
        """Whether a record waits for its continuation."""
        return self._record is not None

    def add(self, text: str, head: Head | None) -> Record | None:
        """Takes the next line.

        Args:
            text: The line, without its line feed and what a launcher put before it.
            head: Its head.

        Returns:
            The record before, if this line begins another.
        """
        if head is None and self._continues(text):
            self._append(text)
            return None
        done = self.end()
        if head is None and not text.strip():
            return done
        self._begin(text, head)
        return done

    def end(self) -> Record | None:
        """Returns the record that is open, as it is."""
        record, self._record = self._record, None
        if record is None:
            return None
        if len(self._parts) > 1:
            record.text = "\n".join(self._parts).rstrip()
        return record

    def _begin(self, text: str, head: Head | None) -> None:
        body = text if head is None else head.body
        self._record = Record(head, body)
        self._parts = [body]
        self._bytes = len(body)
        self._ended = False
        self._exception_seen = False
        self._within = _GRAPH_ERROR in body and not _END_OF_ERROR.search(body)
        self._awaits = head is not None and head.format != TRACEBACK and body.rstrip().endswith(":")

    def _append(self, text: str) -> None:
        assert self._record is not None
        self._record.lines += 1
        if self._bytes < MOST_BYTES:
            self._parts.append(text)
            self._bytes += len(text) + 1

    def _continues(self, text: str) -> bool:
        record = self._record
        if record is None or record.lines >= MOST_LINES:
            return False
        head = record.head
        if self._within:
            self._within = not _END_OF_ERROR.search(text)
            self._ended = not self._within
            return True
        if not text.strip():
            # The end of a block; within a traceback there may be more.
            self._ended = True
            self._awaits = False
            return head is not None
        if head is not None and head.format == TRACEBACK and not self._exception_seen:
            return self._in_traceback(text)
        if _KNOWN.match(text):
            self._awaits = text.rstrip().endswith(":")
            self._ended = False
            return True
        if self._ended:
            return False
        if text[0] in " \t":
            return True
        return head is not None and self._announced(text, head)

    def _in_traceback(self, text: str) -> bool:
        if text[0] in " \t":
            return True
        if _EXCEPTION.match(text):
            self._exception_seen = True
            self._within = _GRAPH_ERROR in text and not _END_OF_ERROR.search(text)
            return True
        # Python's own name for what has no usual name: `package.Fault: text`.
        self._exception_seen = re.match(r"[A-Za-z_][\w.]*(?:: |$)", text) is not None
        return self._exception_seen

    def _announced(self, text: str, head: Head) -> bool:
        if head.format in NATIVE:
            if _PROTO.match(text):
                return True
            return self._awaits and _PROPERTY.match(text) is not None
        if self._awaits and head.format in (PYTHON, TIMED, WARNING):
            # Of what was announced, one line.
            self._awaits = False
            return True
        return False

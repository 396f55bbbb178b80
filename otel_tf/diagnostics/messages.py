"""Taking an error message of TensorFlow apart: root errors, ops, nodes, values, where it happened.

Exceptions of eager code and of `tf.function` carry neither op nor node, only text. Its parts, outermost
first: the stacks in which the failing nodes were defined; several root errors or one; for each, what
happened, the node, and the hops over which the error came, the innermost first; which repeat the text
inside quotes once more; at last the op or function that Python called. Written after messages of
TensorFlow 2.16 to 2.21.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Collection

from otel_tf.diagnostics.values import bracketed, compared, numeric_check

__all__ = ["Frame", "ParsedError", "RootError", "parse"]

#: What is looked at of a message: retried errors nest their text over and over.
_LONGEST = 65_536
_LONGEST_TEXT = 2_048
_MOST_ROOTS = 16
_MOST_FRAMES = 64

_CALLED = re.compile(r"\s*\[Op:(?P<op>[^\]\n]+)\](?: name:[^\n]*)?\s*$")
_TRACED = re.compile(r"^__(?:inference|forward|backward|wrapped)_")
_DETECTED = re.compile(
    r"^Detected at node '?(?P<node>\S+?)'? defined at \(most recent call last\):[^\n]*$", re.M
)
_FRAME = re.compile(r'^\s*File "(?P<file>[^"\n]*)", line (?P<line>\d+), in (?P<function>[^\n]*)$')
_ROOTS = re.compile(r"^\s*\d+ root error\(s\) found\.[^\n]*$", re.M)
_ROOT = re.compile(r"^  \((\d+)\) (?P<code>[A-Za-z][A-Za-z_ ]*): ", re.M)
_END_OF_ROOTS = re.compile(r"^\d+ successful operations\.", re.M)
_NODE = re.compile(r"\{\{node (?P<node>[^}\n]+)\}\}")
_FUNCTION_NODE = re.compile(r"\{\{function_node (?P<name>[^}\n]*)\}\}\s*")
_WRAPPED = re.compile(r"^__wrapped__(?P<op>\w+?)_(?:\w+_)??device_(?P<device>/job:\S+)$")
_HOP = re.compile(r"remote target /job:(?P<job>\w+)/replica:\d+/task:(?P<task>\d+)")
#: The coordination service tells all tasks which one failed, or fell silent.
_REPORTED_FROM = re.compile(r"Error reported from /job:(\w+)(?:/replica:\d+)?/task:(\d+)")
_SILENT = re.compile(
    r"/job:(?P<job>\w+)(?:/replica:\d+)?/task:(?P<task>\d+)[^\n]{0,200}?"
    r"(?:heartbeat|unhealthy|stopped sending)"
)
#: What gRPC says when a process at the other end is gone.
_BROKEN = re.compile(
    r"Socket closed|Connection reset by peer|failed to connect to all addresses|"
    r"Connection refused|Broken pipe"
)
_OOM = re.compile(
    r"OOM when allocating tensor with shape(?P<shape>\[[\d,]*\]) and type (?P<type>\S+) "
    r"on (?P<device>/job:\S+)"
)
_DEVICE_TASK = re.compile(r"/job:(?P<job>\w+)/replica:\d+/task:(?P<task>\d+)")
_CUT = re.compile(r"\n\s*\[\[|\n?Additional GRPC error information|\nHint: |\n\d+ successful operations\.")
_ASSERTED = re.compile(r"assertion failed:\s*(?P<values>.*)", re.S)
_EXPECTED = re.compile(r"^Expected '.*' to be true\. Summarized data: (?P<values>.*)$", re.S)
_CONDITION = re.compile(r"^Condition .+ did not hold", re.M)
_EVERYWHERE = re.compile(
    r'!!! Detected Infinity or NaN in output (?P<output>\d+) of (?:graph|eagerly-executing) op "(?P<op>\w+)"'
)
_TRACED_FRAME = re.compile(r"^\s+\+ (?P<file>\S.*) \(L(?P<line>\d+)\) (?P<function>\S+)\s*$")
_UNSUPPORTED = re.compile(r"(?P<op>\w+) \(No registered '(?P=op)' OpKernel for (?P<device>\S+) devices")
_REPLACED = re.compile(r"originally returned (?P<name>\w+)Error, and was replaced by")
_REPLICA = re.compile(r"(?:^|/)replica_(\d+)/")
_DERIVED = re.compile(r"\[_Derived_\]|\b_Derived_\b")
_NO_STACKS = "<stack traces unavailable>"
_DERIVED_PAYLOAD = "DerivedStatus"
_CANCELLED = "CANCELLED"
_OUR_MACHINE = ("localhost",)


@dataclasses.dataclass(frozen=True)
class Frame:
    """A line of the program that built the failing node."""

    file: str
    line: int
    function: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line} in {self.function}"


@dataclasses.dataclass(frozen=True)
class RootError:
    """One of the errors that a message reports; what the message does not say is None or empty.

    Attributes:
        text: What happened, without nodes, hops and stacks.
        code: TensorFlow's code, such as ``INVALID_ARGUMENT``; only where there are several roots.
        kind: ``assert``, ``check_numerics``, ``enable_check_numerics``, ``out_of_memory``, ``xla``,
            ``peer_lost``.
        label: The program's own words, of an assertion or of ``check_numerics``.
        values: Values that the message shows, as text; of a check what the tensor had.
        op: Type of the op.
        node: Name of the node in the graph.
        device: The device.
        worker: The innermost task, such as ``ps:0``.
        replica: Which replica of its process, from the node's name; 0 is not named in a graph.
        derived: Whether it only follows from another failure.
        stack: Where the node was defined, outermost first.
        returned: The code that the op had returned, where TensorFlow replaced it by another.
    """

    text: str
    code: str | None = None
    kind: str | None = None
    label: str | None = None
    values: tuple[str, ...] = ()
    op: str | None = None
    node: str | None = None
    device: str | None = None
    worker: str | None = None
    replica: int | None = None
    derived: bool = False
    stack: tuple[Frame, ...] = ()
    returned: str | None = None


@dataclasses.dataclass(frozen=True)
class ParsedError:
    """A whole message: at least one root error, those that follow from others last."""

    roots: tuple[RootError, ...]

    @property
    def first(self) -> RootError:
        """The error that the others may follow from."""
        return self.roots[0]


def parse(message: str, payloads: Collection[str] = ()) -> ParsedError:
    """Takes a message apart; any text gives a result, the less of TensorFlow's form the less in it.

    Args:
        message: Of a `tf.errors.OpError`.
        payloads: Names of the payloads of its status.
    """
    message = message[:_LONGEST]
    called = _CALLED.search(message)
    op = None
    if called is not None:
        message = message[: called.start()]
        op = None if _TRACED.match(called["op"]) else called["op"]
    stacks, body = _stacks(message)
    derived = any(_DERIVED_PAYLOAD in name for name in payloads)
    roots = []
    parts = _split(body)
    real = any(code not in (None, _CANCELLED) for code, _, _ in parts)
    for code, text, hops in parts:
        root = _root(text, hops, stacks, op)
        # Whatever else was running is cancelled by the one that fails.
        follows = derived or root.derived or (real and code == _CANCELLED)
        roots.append(dataclasses.replace(root, code=code, derived=follows))
    roots.sort(key=lambda root: root.derived)
    return ParsedError(_distinct(roots)[:_MOST_ROOTS])


def _stacks(message: str) -> tuple[dict[str, tuple[Frame, ...]], str]:
    """Returns the stacks by node, and what follows them."""
    stacks: dict[str, tuple[Frame, ...]] = {}
    end = 0
    for heading in _DETECTED.finditer(message):
        frames, end = list[Frame](), heading.end()
        for line in message[heading.end() :].split("\n"):
            frame = _FRAME.match(line)
            if frame is None and line.strip():
                break
            if frame is not None:
                frames.append(Frame(frame["file"], int(frame["line"]), frame["function"].strip()))
            end += len(line) + 1
        stacks.setdefault(heading["node"], tuple(frames[-_MOST_FRAMES:]))
    body = message[end:] if end else message
    return stacks, body.removeprefix("Graph execution error:").strip("\n")


def _split(body: str) -> list[tuple[str | None, str, str]]:
    """Returns code, text and, if the text does not name them, hops of each root error."""
    several = _ROOTS.search(body)
    if several is None:
        return [(None, body, "")]
    inner = body[several.end() :]
    end = _END_OF_ROOTS.search(inner)
    tail = inner[end.start() :] if end else ""
    inner = inner[: end.start()] if end else inner
    marks = list(_ROOT.finditer(inner))
    if not marks:
        return [(None, body, "")]
    ends = [mark.start() for mark in marks[1:]] + [len(inner)]
    # Hops of all of them follow the last one; its own come first.
    return [
        (mark["code"].strip().upper().replace(" ", "_"), inner[mark.end() : stop], tail)
        for mark, stop in zip(marks, ends, strict=True)
    ]


def _distinct(roots: list[RootError]) -> tuple[RootError, ...]:
    """Leaves out a root that was told twice: each way of an error back to its caller reports it."""
    known: dict[tuple[str, str | None, str | None], RootError] = {}
    for root in roots:
        known.setdefault((root.text, root.node, root.worker), root)
    return tuple(known.values())


def _root(text: str, hops: str, stacks: dict[str, tuple[Frame, ...]], op: str | None) -> RootError:
    device = None
    for place in _FUNCTION_NODE.finditer(text):
        wrapped = _WRAPPED.match(place["name"])
        if wrapped is not None:
            op, device = op or wrapped["op"], wrapped["device"]
            break
    hop = _HOP.search(text) or _HOP.search(hops)
    worker = None if hop is None else f"{hop['job']}:{hop['task']}"
    found_node = _NODE.search(text)
    node = None if found_node is None else found_node["node"].strip()
    cut = _CUT.search(text)
    said = _FUNCTION_NODE.sub("", text if cut is None else text[: cut.start()]).strip()
    said = said.removeprefix(_NO_STACKS).strip()
    derived = bool(_DERIVED.search(said))
    root = _recognised(_DERIVED.sub("", said).strip(), op=op, node=node, device=device)
    reported = _REPORTED_FROM.search(said)
    if worker is None and root.worker is None and reported is not None:
        # Another task failed, whatever it failed with; this one only follows.
        worker, derived = ":".join(reported.groups()), True
    if worker is None and root.worker is None and root.device is not None:
        on = _DEVICE_TASK.match(root.device)
        worker = None if on is None or on["job"] in _OUR_MACHINE else f"{on['job']}:{on['task']}"
    replica = _REPLICA.search(root.node or "")
    replaced = _REPLACED.search(text)
    return dataclasses.replace(
        root,
        worker=worker or root.worker,
        derived=derived or root.derived,
        returned=None if replaced is None else re.sub(r"(?<=.)(?=[A-Z])", "_", replaced["name"]).upper(),
        replica=None if replica is None else int(replica[1]),
        stack=root.stack or stacks.get(node or "") or next(iter(stacks.values()), ()),
    )


def _recognised(said: str, *, op: str | None, node: str | None, device: str | None) -> RootError:
    """Returns what a known form of text tells."""
    plain = RootError(said[:_LONGEST_TEXT], op=op, node=node, device=device)
    everywhere = _EVERYWHERE.search(said)
    if everywhere is not None:
        return _checked_everywhere(plain, said, everywhere)
    refused = _UNSUPPORTED.search(said)
    if refused is not None or "tf2xla conversion failed" in said:
        found = None if refused is None else refused["op"]
        frames = tuple(
            Frame(frame["file"], int(frame["line"]), frame["function"].strip())
            for frame in map(_FRAME.match, said.splitlines())
            if frame is not None
        )
        return dataclasses.replace(plain, kind="xla", op=found or op, stack=frames)
    asserted = _ASSERTED.search(said)
    if asserted is not None:
        values = bracketed(asserted["values"])
        return dataclasses.replace(plain, kind="assert", values=values, label=values[0] if values else None)
    expected = _EXPECTED.match(said)
    if expected is not None:
        values = tuple(part for part in expected["values"].split(", ") if part)[:32]
        return dataclasses.replace(plain, kind="assert", values=values)
    if _CONDITION.search(said):
        label = said.partition("\nCondition")[0] if not said.startswith("Condition") else None
        return dataclasses.replace(plain, kind="assert", values=compared(said), label=label)
    checked = numeric_check(said)
    if checked is not None:
        return dataclasses.replace(plain, kind="check_numerics", label=checked[0], values=checked[1])
    memory = _OOM.search(said)
    if memory is not None:
        values = (memory["shape"], memory["type"])
        return dataclasses.replace(plain, kind="out_of_memory", device=memory["device"], values=values)
    if _BROKEN.search(said):
        return dataclasses.replace(plain, kind="peer_lost", derived="is aborted by" in said)
    silent = _SILENT.search(said)
    if silent is not None:
        return dataclasses.replace(plain, kind="peer_lost", worker=":".join(silent.groups()), derived=True)
    return plain


def _checked_everywhere(plain: RootError, said: str, found: re.Match[str]) -> RootError:
    """Returns what `enable_check_numerics` tells: op, counts, and the stack with the program's lines."""
    lines = said.splitlines()
    frames = tuple(
        Frame(frame["file"], int(frame["line"]), frame["function"])
        for line, after in zip(lines, [*lines[1:], ""], strict=True)
        if (frame := _TRACED_FRAME.match(line)) is not None and after.lstrip().startswith("->")
    )
    checked = numeric_check(said)
    node = plain.node
    return dataclasses.replace(
        plain,
        kind="enable_check_numerics",
        op=found["op"],
        # The check's own node hangs below the one that it checks.
        node=None if node is None else re.sub(r"/CheckNumericsV2(_\d+)?$", "", node),
        values=() if checked is None else checked[1],
        stack=frames[-_MOST_FRAMES:],
    )

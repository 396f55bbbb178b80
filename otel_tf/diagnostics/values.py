"""The values in the messages of TensorFlow's own checks."""

from __future__ import annotations

import re

__all__ = ["bracketed", "compared", "numeric_check"]

_MOST_VALUES = 32
_LONGEST_VALUE = 512

_COMPARED = re.compile(r"^(?:First \d+ elements of|Shape of) (.+?):?$")
_HAD = re.compile(r"^(?P<label>.*?)\s*: Tensor had (?P<what>[^\n]*?) values?\s*$", re.S)
_COUNTED = re.compile(r"^\s*# of (\S+) elements: (\d+)\s*$", re.M)


def bracketed(text: str) -> tuple[str, ...]:
    """Returns the contents of ``[a] [[1 2] [3 4]] [b]``, as `tf.debugging.Assert` puts its data.

    Args:
        text: What follows ``assertion failed: ``; what is not in brackets is left out. Where the last
            bracket is missing, for the message was cut, the rest is the last value.
    """
    found, depth, begin = list[str](), 0, 0
    for place, letter in enumerate(text):
        if letter == "[":
            if not depth:
                begin = place + 1
            depth += 1
        elif letter == "]" and depth:
            depth -= 1
            if not depth:
                found.append(text[begin:place])
    if depth:
        found.append(text[begin:])
    return _bounded(found)


def compared(text: str) -> tuple[str, ...]:
    """Returns the operands that an eager ``assert_*`` lists: name and value in turn.

    Args:
        text: Lines such as ``First 2 elements of x:``, each followed by the value.
    """
    found, name = list[str](), None
    for line in text.splitlines():
        heading = _COMPARED.match(line.strip())
        if heading:
            name = heading[1]
        elif name is not None:
            found += [name, line.strip().removeprefix("[").removesuffix("]")]
            name = None
    return _bounded(found)


def numeric_check(text: str) -> tuple[str, tuple[str, ...]] | None:
    """Returns label and finding of a message of ``check_numerics``; None where it is none.

    The finding is what the tensor had (``NaN``, ``-Inf``), with the counts where TensorFlow tells them.
    """
    had = _HAD.match(text)
    if had is None:
        return None
    kinds = [kind.strip() for kind in re.split(r",|\band\b", had["what"]) if kind.strip()]
    counted = [f"{kind}: {count}" for kind, count in _COUNTED.findall(text)]
    return had["label"].strip(), _bounded(counted or kinds)


def _bounded(values: list[str]) -> tuple[str, ...]:
    return tuple(value[:_LONGEST_VALUE] for value in values[:_MOST_VALUES])

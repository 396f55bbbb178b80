"""What is whole in a line of OTLP/JSON that was cut off: its writer was killed, or its disk was full."""

from __future__ import annotations

import re

__all__ = ["complete_spans"]

#: A text, a bracket; a quote alone begins a text that does not end.
_TOKEN = re.compile(rb'"(?:[^"\\]|\\.)*"|["{}\[\]]', re.DOTALL)
_CLOSING = {b"}": b"{", b"]": b"["}
_CLOSERS = {b"{": b"}", b"[": b"]"}
#: The brackets around a span: {"resourceSpans":[{"scopeSpans":[{"spans":[ and the same in {"result":
_AROUND_SPAN = (b"{[{[{[", b"{{[{[{[")
_HEAD = re.compile(rb'"(resourceSpans|resource|result)"')


def complete_spans(line: bytes, until: int) -> tuple[bytes, int]:
    """Returns the whole spans before an error, as JSON, and where the last of them ends.

    Nothing and 0 if there is none.

    Args:
        line: Not JSON.
        until: Where in it the error is; what is before was read without one.
    """
    open_brackets: list[bytes] = []
    end = 0
    around = b""
    for token in _TOKEN.finditer(line, 0, until):
        text = token[0]
        if text == b'"':
            break
        if text in _CLOSERS:
            open_brackets.append(text)
        elif text in _CLOSING:
            if not open_brackets or open_brackets.pop() != _CLOSING[text]:
                break
            stack = b"".join(open_brackets) if len(open_brackets) <= len(_AROUND_SPAN[1]) else b""
            if text == b"}" and stack in _AROUND_SPAN:
                end, around = token.end(), stack
    if not end or not _HEAD.match(line.lstrip(b"\xef\xbb\xbf \t{")):
        return b"", 0
    return line[:end] + b"".join(_CLOSERS[bytes([one])] for one in reversed(around)), end

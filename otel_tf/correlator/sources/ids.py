"""Trace and span ids, from hex texts or bytes, as int64 columns."""

from __future__ import annotations

import binascii
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

__all__ = ["from_arrow", "from_texts", "to_hex"]

_NO_DIGIT = 255
_NIBBLE = np.full(256, _NO_DIGIT, np.uint8)
for _value, _digits in enumerate(zip("0123456789abcdef", "0123456789ABCDEF", strict=True)):
    for _digit in _digits:
        _NIBBLE[ord(_digit)] = _value
_DIGITS = np.frombuffer(b"0123456789abcdef", np.uint8)


def from_texts(
    texts: Sequence[str | None], size: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
    """Returns ids as big-endian int64 words, which of them are well-formed, and which are absent.

    Args:
        texts: Hex texts of either case; empty and None are absent.
        size: Bytes of an id: 8 or 16.

    Returns:
        As `from_arrow`, and a mask of the ids that are absent: empty, None, or zeros.
    """
    zeros = "0" * (2 * size)
    filled = [text or zeros for text in texts]
    # Mostly all are as they should be: then one text is converted instead of many.
    if set(map(len, filled)) <= {len(zeros)}:
        try:
            raw = binascii.unhexlify("".join(filled))
        except ValueError:
            pass
        else:
            words: npt.NDArray[np.int64] = np.frombuffer(raw, ">i8").astype(np.int64).reshape(-1, size // 8)
            good: npt.NDArray[np.bool_] = (words != 0).any(axis=1)
            return words, good, ~good
    words, good = from_arrow(pa.array(filled, pa.string()), size)
    return words, good, np.array([text == zeros for text in filled], np.bool_)


def from_arrow(ids: pa.Array, size: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
    """Returns ids as big-endian int64 words, and which of them are well-formed.

    Args:
        ids: Hex texts of either case, or bytes; null and empty count as malformed.
        size: Bytes of an id: 8 or 16.

    Returns:
        Words of shape (ids, size / 8), 0 where malformed, and a mask of shape (ids,). An id of zeros
        counts as malformed: it is OpenTelemetry's invalid id.
    """
    is_text = pa.types.is_string(ids.type) or pa.types.is_large_string(ids.type)
    width = 2 * size if is_text else size
    good = pc.equal(pc.binary_length(ids), width).fill_null(False)
    good_mask: npt.NDArray[np.bool_] = np.array(good.to_numpy(zero_copy_only=False))
    chosen = ids if good_mask.all() else ids.filter(good)
    raw = _fixed(chosen, width)
    if is_text:
        raw = _from_hex(raw)
    decoded: npt.NDArray[np.int64] = np.frombuffer(raw.tobytes(), ">i8").astype(np.int64)
    decoded = decoded.reshape(-1, size // 8)
    good_mask[good_mask] = (decoded != 0).any(axis=1)
    words = np.zeros((len(ids), size // 8), np.int64)
    words[good_mask] = decoded[(decoded != 0).any(axis=1)]
    return words, good_mask


def _from_hex(digits: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """Returns rows of hex digits as rows of bytes; zeros where one is no digit."""
    try:
        data = binascii.unhexlify(digits.data)
        return np.frombuffer(data, np.uint8).reshape(len(digits), digits.shape[1] // 2)
    except binascii.Error:
        nibbles: npt.NDArray[np.uint8] = _NIBBLE[digits]
        proper = (nibbles != _NO_DIGIT).all(axis=1)
        raw = nibbles[:, 0::2] * np.uint8(16) + (nibbles[:, 1::2] & np.uint8(15))
        raw[~proper] = 0
        return raw


def _fixed(values: pa.Array, width: int) -> npt.NDArray[np.uint8]:
    """Returns the bytes of ``values``, all ``width`` bytes long and none null, as a matrix."""
    if not len(values):
        return np.empty((0, width), np.uint8)
    wide = pa.types.is_large_string(values.type) or pa.types.is_large_binary(values.type)
    _, offsets, data = values.buffers()
    first = int(np.frombuffer(offsets, np.int64 if wide else np.int32)[values.offset])
    flat = np.frombuffer(data, np.uint8)[first : first + len(values) * width]
    return flat.reshape(-1, width)


def to_hex(*words: npt.NDArray[np.int64]) -> pa.Array:
    """Returns ids as lower-case hex texts, from one column (a span id) or two (a trace id)."""
    raw = np.stack(words, axis=1).astype(">i8").view(np.uint8)
    digits = np.empty((len(raw), raw.shape[1] * 2), np.uint8)
    digits[:, 0::2] = _DIGITS[raw >> 4]
    digits[:, 1::2] = _DIGITS[raw & 15]
    # More than 67 million trace ids are more text than 32-bit offsets reach.
    wide = digits.size >= 2**31
    offsets = np.arange(0, digits.size + 1, digits.shape[1], dtype=np.int64 if wide else np.int32)
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(digits)]
    return pa.Array.from_buffers(pa.large_string() if wide else pa.string(), len(raw), buffers)

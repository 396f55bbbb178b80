"""What a tensor held, in a few numbers.

Minimum, maximum, mean and norm are those of the finite elements: a single NaN would hide all else. NaN and
infinite elements are counted apart.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from otel_tf import semconv

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

__all__ = ["BOUNDS", "ROW", "TensorSummary", "of_array", "of_row", "worst_first"]

_MAGNITUDES = [10.0**exponent for exponent in range(-8, 9)]
#: Bounds of a histogram's buckets; bucket i holds ``BOUNDS[i-1] <= x < BOUNDS[i]``.
BOUNDS = (*(-bound for bound in reversed(_MAGNITUDES)), *_MAGNITUDES)
#: Elements that are looked at in one go: some 10 ms.
_CHUNK = 1 << 20


@dataclasses.dataclass(frozen=True)
class TensorSummary:
    """What is known of one tensor; what could not be learned is None.

    Attributes:
        name: The tensor's name.
        group: What it was to the step: ``batch``, ``variable``, ``optimizer``, ``state`` or ``watch``.
        shape: Its shape.
        dtype: Its type, such as ``float32``.
        size: Elements that were looked at.
        nan: NaN elements.
        inf: Infinite elements.
        min: The least finite element.
        max: The greatest one.
        mean: Mean of the finite elements.
        norm: Their Euclidean norm.
        histogram: Counts of the finite elements by `BOUNDS`; one more than there are bounds.
        device: Where it lives.
        partial: Whether time ran out before all elements were looked at.
        problem: Why nothing is known of its elements.
        run: How many runs of the watch there had been with this one; of a watched tensor.
        time_ns: When, ns since the epoch by its device's clock; of a watched tensor.
    """

    name: str
    group: str
    shape: tuple[int, ...] | None = None
    dtype: str | None = None
    size: int = 0
    nan: int = 0
    inf: int = 0
    min: float | None = None
    max: float | None = None
    mean: float | None = None
    norm: float | None = None
    histogram: tuple[int, ...] | None = None
    device: str | None = None
    partial: bool = False
    problem: str | None = None
    run: int | None = None
    time_ns: int | None = None

    @property
    def spoiled(self) -> bool:
        """Whether it held NaN or infinite elements."""
        return bool(self.nan or self.inf)

    def as_json(self) -> dict[str, Any]:
        """Returns what is known, by the names of the fields."""
        fields = dataclasses.asdict(self)
        return {key: value for key, value in fields.items() if value is not None and value is not False}

    def as_attributes(self) -> dict[str, Any]:
        """Returns the attributes of an event; without the histogram."""
        given = {
            semconv.TENSOR_NAME: self.name,
            semconv.TENSOR_GROUP: self.group,
            semconv.TENSOR_SHAPE: None if self.shape is None else list(self.shape),
            semconv.TENSOR_DTYPE: self.dtype,
            semconv.TENSOR_DEVICE: self.device,
            semconv.TENSOR_SIZE: None if self.problem else self.size,
            semconv.TENSOR_NAN: None if self.problem else self.nan,
            semconv.TENSOR_INF: None if self.problem else self.inf,
            semconv.TENSOR_MIN: self.min,
            semconv.TENSOR_MAX: self.max,
            semconv.TENSOR_MEAN: self.mean,
            semconv.TENSOR_NORM: self.norm,
            semconv.TENSOR_PROBLEM: self.problem,
        }
        return {key: value for key, value in given.items() if value is not None}


def worst_first(summaries: Sequence[TensorSummary]) -> list[TensorSummary]:
    """Returns the spoiled ones first, the most spoiled share first; then the batch; then by magnitude."""

    def key(one: TensorSummary) -> tuple[bool, float, bool, float]:
        share = (one.nan + one.inf) / one.size if one.size else 0.0
        magnitude = max(abs(one.min or 0.0), abs(one.max or 0.0))
        return not one.spoiled, -share, one.group != "batch", -magnitude

    return sorted(summaries, key=key)


#: Order of the numbers in a summary that a graph makes; the counts of a histogram follow. The last two are
#: sums, of the finite elements and of their squares: whoever reads them has the time to divide.
ROW = ("time", "size", "nan", "inf", "min", "max", "sum", "squares")


def of_row(row: Sequence[float], **known: Any) -> TensorSummary:
    """Returns the summary that a graph made.

    Args:
        row: float64, by `ROW`: time in s (0: unknown), then counts, then numbers; then the histogram.
        **known: Further fields of the summary.
    """
    time_s, size, nan, inf, *numbers = (float(value) for value in row[: len(ROW)])
    histogram = tuple(int(count) for count in row[len(ROW) :]) or None
    if size == 1 and not math.isfinite(numbers[0]):
        # Of a single number the graph leaves it to us to see what it is.
        nan, inf = float(math.isnan(numbers[0])), float(math.isinf(numbers[0]))
    least = greatest = mean = norm = None
    finite = size - nan - inf
    if finite > 0:
        least, greatest, total, squares = numbers
        mean = total / finite
        norm = abs(total) if finite == 1 else math.sqrt(squares)
    return TensorSummary(
        size=int(size),
        nan=int(nan),
        inf=int(inf),
        min=least,
        max=greatest,
        mean=mean,
        norm=norm,
        histogram=histogram,
        time_ns=round(time_s * 1e9) or None,
        **known,
    )


def of_array(array: npt.NDArray[Any], in_time: Callable[[], bool], **known: Any) -> TensorSummary:
    """Returns the summary of an array: of numbers, else only shape and type.

    Args:
        array: Any array; it is only read.
        in_time: Asked between pieces of some 10 ms; no more are looked at when it says no.
        **known: Further fields of the summary.
    """
    import numpy as np

    known = {"shape": tuple(map(int, array.shape)), "dtype": array.dtype.name, **known}
    if not (np.issubdtype(array.dtype, np.number) or array.dtype.kind in "bV"):
        return TensorSummary(**known)
    flat = array.reshape(-1)
    pieces = _Pieces()
    for first in range(0, flat.size, _CHUNK):
        if first and not in_time():
            break
        pieces.add(flat[first : first + _CHUNK])
    return pieces.summary(partial=pieces.size < flat.size, **known)


class _Pieces:
    """Sums over the pieces of an array."""

    def __init__(self) -> None:
        import numpy as np

        self.size = self._nan = self._inf = self._finite = 0
        self._min, self._max = math.inf, -math.inf
        self._sum = self._squares = 0.0
        self._histogram: npt.NDArray[np.int64] = np.zeros(len(BOUNDS) + 1, np.int64)

    def add(self, piece: npt.NDArray[Any]) -> None:
        import numpy as np

        self.size += piece.size
        numbers: npt.NDArray[np.float64] = (
            np.abs(piece).astype(np.float64) if np.iscomplexobj(piece) else piece.astype(np.float64)
        )
        self._nan += int(np.isnan(numbers).sum())
        self._inf += int(np.isinf(numbers).sum())
        finite = numbers[np.isfinite(numbers)]
        if not finite.size:
            return
        self._finite += finite.size
        self._min, self._max = min(self._min, float(finite.min())), max(self._max, float(finite.max()))
        self._sum += float(finite.sum())
        with np.errstate(over="ignore"):
            self._squares += float(np.square(finite).sum())
        buckets = np.searchsorted(BOUNDS, finite, side="right")
        self._histogram += np.bincount(buckets, minlength=len(BOUNDS) + 1)

    def summary(self, *, partial: bool, **known: Any) -> TensorSummary:
        some = self._finite > 0
        return TensorSummary(
            size=self.size,
            nan=self._nan,
            inf=self._inf,
            min=self._min if some else None,
            max=self._max if some else None,
            mean=self._sum / self._finite if some else None,
            norm=math.sqrt(self._squares) if some else None,
            histogram=tuple(int(count) for count in self._histogram),
            partial=partial,
            **known,
        )

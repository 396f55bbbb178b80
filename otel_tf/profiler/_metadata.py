"""What the numbers in a plane's events mean: names of events and stats, by their ids in that plane."""

from __future__ import annotations

import dataclasses

import numpy as np
import numpy.typing as npt
import pyarrow as pa

__all__ = ["Metadata", "Numbers", "mask", "numpy", "parents", "signed"]

Int = npt.NDArray[np.int64]


class Numbers(dict[str, int]):
    """Texts numbered in the order in which they are first asked for."""

    def __missing__(self, text: str) -> int:
        number = self[text] = len(self)
        return number


@dataclasses.dataclass(frozen=True)
class Metadata:
    """Sorted ids, and what each stands for.

    Attributes:
        plane: The plane's name.
        event_ids, event_names: Of its events (E,), and their numbers among the names.
        stat_ids, stat_kinds, stat_texts: Of its stats (S,), their places among the kept ones, -1 for others,
            and the numbers of their names among the texts: stats refer to them for their values too.
        stat_names: Names of stats by id.
    """

    plane: str
    event_ids: Int
    event_names: Int
    stat_ids: Int
    stat_kinds: Int
    stat_texts: Int
    stat_names: dict[int, str]

    @staticmethod
    def of(
        known: pa.RecordBatch, kept: tuple[str, ...], event_names: Numbers, types: list[str], words: Numbers
    ) -> Metadata:
        """Reads what a plane says about its events.

        Args:
            known: A message ``Metadata`` of `_shape`.
            kept: Names of the stats that are wanted.
            event_names: Takes the names of events.
            types: Takes the display name of each of ``event_names``.
            words: Takes the names of stats.
        """
        plane = known.column("name")[0].as_py().decode(errors="replace")
        events = known.column("events").flatten()
        ids, place = _distinct(numpy(events.field("key")))
        about = events.field("value").take(pa.array(place))
        shown = (about.field(name).fill_null(b"").to_pylist() for name in ("name", "display_name"))
        names = []
        for name, display in zip(*shown, strict=True):
            text, kind = name.decode(errors="replace"), display.decode(errors="replace")
            number = event_names[text]
            if number == len(types):
                types.append(kind)
            elif not types[number]:
                types[number] = kind
            names.append(number)
        stats = known.column("stats").flatten()
        stat_ids, place = _distinct(numpy(stats.field("key")))
        labels = stats.field("value").field("name").take(pa.array(place)).fill_null(b"").to_pylist()
        texts = [label.decode(errors="replace") for label in labels]
        kinds = {name: number for number, name in enumerate(kept)}
        return Metadata(
            plane=plane,
            event_ids=ids,
            event_names=np.array(names, np.int64),
            stat_ids=stat_ids,
            stat_kinds=np.array([kinds.get(text, -1) for text in texts], np.int64),
            stat_texts=np.array([words[text] for text in texts], np.int64),
            stat_names=dict(zip(stat_ids.tolist(), texts, strict=True)),
        )

    def name_of(self, ids: Int) -> Int:
        """Returns numbers of names, -1 for ids that nothing is known of."""
        return _look_up(self.event_ids, self.event_names, ids)

    def stat_of(self, ids: Int) -> Int:
        """Returns places among the kept ones, -1 for other stats."""
        return _look_up(self.stat_ids, self.stat_kinds, ids)

    def text_of(self, ids: Int) -> Int:
        """Returns numbers of texts that stats refer to; -1 for a reference to nothing."""
        return _look_up(self.stat_ids, self.stat_texts, ids)


def _look_up(ids: Int, values: Int, wanted: Int) -> Int:
    if not len(ids):
        return np.full(len(wanted), -1, values.dtype)
    if ids[0] >= 0 and ids[-1] < 4 * len(ids) + 1024:
        # Numbered without large gaps, as profilers do: a table is ten times faster than a search.
        table = np.full(int(ids[-1]) + 2, -1, values.dtype)
        table[ids] = values
        at = np.where((wanted < 0) | (wanted > ids[-1]), len(table) - 1, wanted)
        found: Int = table[at]
        return found
    at = np.minimum(np.searchsorted(ids, wanted), len(ids) - 1)
    return np.where(ids[at] == wanted, values[at], values.dtype.type(-1))


def _distinct(ids: Int) -> tuple[Int, Int]:
    """Returns distinct ids, sorted, and where the last of each is: a map's last entry counts."""
    found, place = np.unique(ids[::-1], return_index=True)
    return found, len(ids) - 1 - place


def parents(lists: pa.ListArray) -> Int:
    """Returns, for each item of all lists, the row of its list."""
    length = np.diff(numpy(lists.offsets))
    return np.repeat(np.arange(len(length)), length)


def numpy(column: pa.Array) -> Int:
    """Returns a column without nulls as an array."""
    found: Int = column.to_numpy(zero_copy_only=False)
    return found


def signed(column: pa.Array) -> pa.Array:
    """Returns uint64 as int64 of the same bits."""
    return column.view(pa.int64())


def mask(column: pa.Array) -> npt.NDArray[np.bool_]:
    """Returns a column of truth values as an array."""
    found: npt.NDArray[np.bool_] = column.to_numpy(zero_copy_only=False)
    return found

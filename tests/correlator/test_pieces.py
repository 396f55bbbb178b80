"""Work piece by piece is the work on the whole."""

from __future__ import annotations

import numpy as np
import pytest

from otel_tf.correlator import pieces


@pytest.mark.parametrize("count", [0, 1, 7, 8, 9, 64, 65])
def test_pieces_are_all_rows_in_order(count, monkeypatch):
    monkeypatch.setattr(pieces, "_PIECE", 8)
    made = pieces.each(count, lambda piece: list(range(piece.start, piece.stop)))
    assert [row for rows in made for row in rows] == list(range(count))
    assert all(len(rows) == 8 for rows in made[:-1])


@pytest.mark.parametrize("count", [0, 5, 100])
def test_rows_that_are_marked(count, monkeypatch):
    monkeypatch.setattr(pieces, "_PIECE", 8)
    marks = np.random.default_rng(count).random(count) < 0.3
    assert pieces.flatnonzero(count, lambda piece: marks[piece]).tolist() == np.flatnonzero(marks).tolist()


def test_what_goes_wrong_in_a_piece_is_raised(monkeypatch):
    monkeypatch.setattr(pieces, "_PIECE", 8)
    with pytest.raises(ZeroDivisionError):
        pieces.each(64, lambda piece: 1 // (piece.start - 32))


def test_widened(monkeypatch):
    monkeypatch.setattr(pieces, "_PIECE", 8)
    wide = pieces.widened(np.arange(-9, 21, dtype=np.int8))
    assert wide.dtype == np.int64
    assert wide.tolist() == list(range(-9, 21))

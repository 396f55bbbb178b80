"""Attributes from JSON text to columns, against what the same JSON means read value by value."""

from __future__ import annotations

import json
import math
import re
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from otel_tf.correlator.sources.any_value import plain_attributes
from otel_tf.correlator.sources.attributes import MOST_ATTRIBUTES
from otel_tf.correlator.sources.json_attributes import from_json
from otel_tf.correlator.sources.json_places import Places

# Texts with what delimits attributes and texts in them.
TEXT = st.text(max_size=6) | st.sampled_from(
    [
        '"',
        "\\",
        '\\"',
        '{"key":"',
        '","value":{"',
        '"}},{"key":"a","value":{"intValue":"1"}}',
        "\\u0041",
        "☃\U0001f600",
    ]
)
INTEGER = st.integers(-(2**63), 2**63 - 1)
KEYS = st.sampled_from(["a", "b", 'k"ey', "ü", "back\\slash", ""])
#: Numbers that Python's json writes bare, and JSON has not.
NO_JSON = re.compile(r'(" ?: ?)(-?(?:NaN|Infinity))\b')


@st.composite
def any_value(draw: Any, depth: int = 2) -> Any:
    """An ``AnyValue`` as somebody might write it."""
    kinds = {
        "stringValue": TEXT,
        "intValue": INTEGER.map(str)
        | INTEGER
        | st.sampled_from(["007", "+5", "-0", "x", "", 1.0, 1.5, None, "9" * 30]),
        "doubleValue": st.floats()
        | st.integers(-9, 9)
        | st.sampled_from(["NaN", "Infinity", "1.5", "x", None]),
        "boolValue": st.booleans() | st.sampled_from(["true", 1, None]),
        "bytesValue": st.sampled_from(["", "AAEC"]),
        "jsonValue": TEXT,
        "other": TEXT,
    }
    if depth:
        inner = any_value(depth - 1)
        kinds["arrayValue"] = st.lists(inner, max_size=2).map(lambda items: {"values": items})
        pairs = st.lists(st.tuples(KEYS, inner), max_size=2)
        kinds["kvlistValue"] = pairs.map(
            lambda found: {"values": [{"key": key, "value": of} for key, of in found]}
        )
    kind = draw(st.sampled_from(list(kinds)))
    value = {kind: draw(kinds[kind])}
    return draw(st.sampled_from([value] * 8 + [{}, None, {**value, "more": 1}]))


@st.composite
def text_of_list(draw: Any) -> bytes:
    """The JSON text of a list of attributes, mostly as writers write it."""
    pairs = draw(st.lists(st.tuples(KEYS, any_value()), max_size=4))
    items: list[Any] = [{"key": key, "value": value} for key, value in pairs]
    if draw(st.integers(0, 9)) == 0:
        items = draw(
            st.sampled_from(
                [
                    None,
                    {},
                    "text",
                    [3],
                    [{}],
                    [*items, None],
                    [{"value": {"intValue": "1"}, "key": "a"}],
                    items * 2,
                ]
            )
        )
    spaces = draw(st.sampled_from([(",", ":")] * 4 + [(", ", ": "), (" ,", " :")]))
    text = json.dumps(items, separators=spaces, ensure_ascii=draw(st.booleans()))
    return NO_JSON.sub(r'\1"\2"', text).encode()


def meaning(text: bytes) -> dict[str, Any]:
    return {key: readable(value) for key, value in plain_attributes(msgspec.json.decode(text))}


def readable(value: Any) -> Any:
    # JSON has no such numbers.
    if isinstance(value, float) and not math.isfinite(value):
        return {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}[str(value)]
    return value


@settings(max_examples=400, deadline=None)
@given(st.lists(text_of_list(), max_size=5))
def test_json_is_that_of_the_values_one_by_one(texts):
    objects = from_json(texts).json(frozenset()).to_pylist()
    assert len(objects) == len(texts)
    for text, found in zip(texts, objects, strict=True):
        assert (found is None) == (not plain_attributes(msgspec.json.decode(text)))
        if found is not None:
            assert json.loads(found) == meaning(text)


@settings(max_examples=300, deadline=None)
@given(st.lists(text_of_list(), min_size=2, max_size=5))
def test_how_others_write_changes_nothing(texts):
    together = from_json(texts)
    alone = [from_json([text]) for text in texts]
    assert together.json(frozenset({"b"})).to_pylist() == [
        one.json(frozenset({"b"}))[0].as_py() for one in alone
    ]
    for key in ("a", "ü", 'k"ey'):
        assert together.integers(key).array().to_pylist() == [
            one.integers(key).array()[0].as_py() for one in alone
        ]
        assert together.texts(key).array().to_pylist() == [one.texts(key).array()[0].as_py() for one in alone]


@settings(max_examples=200, deadline=None)
@given(
    st.lists(
        st.lists(st.tuples(KEYS, INTEGER | TEXT | st.booleans() | st.floats(allow_nan=False)), max_size=4)
    )
)
def test_what_writers_write_is_taken_as_it_stands(samples_of):
    lists = [[{"key": key, "value": as_written(value)} for key, value in pairs] for pairs in samples_of]
    texts = [json.dumps(items, separators=(",", ":"), ensure_ascii=False).encode() for items in lists]
    texts = [
        text.replace(b":-Infinity", b':"-Infinity"').replace(b":Infinity", b':"Infinity"') for text in texts
    ]
    assert Places.of(texts) is not None


def as_written(value: Any) -> dict[str, Any]:
    if isinstance(value, bool):
        return {"boolValue": value}
    if isinstance(value, int):
        return {"intValue": str(value)}
    return {"doubleValue": value} if isinstance(value, float) else {"stringValue": value}


def attributes(**values: Any) -> bytes:
    items = [{"key": key, "value": value} for key, value in values.items()]
    return json.dumps(items, separators=(",", ":")).encode()


@pytest.mark.parametrize(
    ("value", "integer", "text"),
    [
        ({"intValue": "17"}, 17, "17"),
        ({"intValue": 17}, 17, "17"),
        ({"stringValue": "17"}, 17, "17"),
        ({"stringValue": "\u0661"}, 1, "\u0661"),
        ({"doubleValue": 18.0}, 18, None),
        ({"doubleValue": 18.5}, None, None),
        ({"stringValue": "soon"}, None, "soon"),
        ({"stringValue": ""}, None, None),
        ({"boolValue": True}, None, None),
        ({"intValue": str(2**63)}, None, str(2**63)),
        ({"arrayValue": {"values": [{"intValue": "1"}]}}, None, None),
        ({}, None, None),
    ],
)
def test_one_attribute_as_a_column(value, integer, text):
    found = from_json([attributes(x={"intValue": "1"}), attributes(a=value), b"[]"])
    assert found.integers("a").array().to_pylist() == [None, integer, None]
    assert found.texts("a").array().to_pylist() == [None, text, None]
    assert found.integers("nowhere").array().to_pylist() == [None] * 3


def test_a_later_one_of_the_same_key_counts_also_when_it_is_escaped():
    text = b'[{"key":"a","value":{"intValue":"1"}},{"key":"\\u0061","value":{"intValue":"2"}}]'
    assert from_json([text]).integers("a").array().to_pylist() == [2]


def test_more_attributes_than_are_kept():
    many = attributes(**{f"a{n}": {"intValue": str(n)} for n in range(MOST_ATTRIBUTES + 5)})
    found = from_json([attributes(a0={"intValue": "1"}), many])
    assert found.cut().tolist() == [1]
    objects = [json.loads(text) for text in found.json(frozenset({"a3"})).to_pylist()]
    assert list(objects[1]) == [f"a{n}" for n in range(MOST_ATTRIBUTES + 1) if n != 3]
    assert objects[0] == {"a0": 1}

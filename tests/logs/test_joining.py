"""Which lines belong to the record before."""

from __future__ import annotations

import pytest

from otel_tf.logs.heads import Clock, parse_head
from otel_tf.logs.joining import Joiner


def records(text: str) -> list[str]:
    joiner, clock, found = Joiner(), Clock(0), []
    for line in text.split("\n"):
        done = joiner.add(line, parse_head(line, clock))
        if done is not None:
            found.append(done.text)
    done = joiner.end()
    return found if done is None else [*found, done.text]


HEAD = "I0000 00:00:1796106434.427519 1 a.cc:1] "


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (f"{HEAD}a\n{HEAD}b", ["a", "b"]),
        (
            f"{HEAD}a\nTo enable them in other operations, rebuild.",
            ["a\nTo enable them in other operations, rebuild."],
        ),
        (f"{HEAD}a\n\t [[{{{{node x}}}}]]\nprinted", ["a\n\t [[{{node x}}]]", "printed"]),
        (
            f"{HEAD}Options:\nkey {{\n  a: 1\n}}\nother: 3\nprinted",
            ["Options:\nkey {\n  a: 1\n}\nother: 3", "printed"],
        ),
        (
            f"{HEAD}Found device with properties:\nname: Tesla\nbus: 0:1\n{HEAD}b",
            ["Found device with properties:\nname: Tesla\nbus: 0:1", "b"],
        ),
        (f"{HEAD}a\nprinted\nprinted again", ["a", "printed", "printed again"]),
        ("[[0]\n [1]]\n[[2]\n [3]]", ["[[0]\n [1]]", "[[2]\n [3]]"]),
        (
            "WARNING:tensorflow:old\nInstructions for updating:\nuse new\nprinted",
            ["old\nInstructions for updating:\nuse new", "printed"],
        ),
        (
            'Traceback (most recent call last):\n  File "a.py", line 1\nValueError: no\nprinted',
            ['Traceback (most recent call last):\n  File "a.py", line 1\nValueError: no', "printed"],
        ),
        (
            'Traceback (most recent call last):\n  File "a.py", line 1\nmy.Fault: no\nprinted',
            ['Traceback (most recent call last):\n  File "a.py", line 1\nmy.Fault: no', "printed"],
        ),
        ("\n\n", []),
        ("", []),
    ],
    ids=[
        "heads",
        "to enable",
        "node",
        "protobuf",
        "announced",
        "prints",
        "tensors",
        "updating",
        "traceback",
        "own exception",
        "blank",
        "nothing",
    ],
)
def test_joining(text: str, expected: list[str]) -> None:
    assert records(text) == expected


def test_a_graph_error_goes_on_over_blank_lines_to_its_end() -> None:
    error = (
        "Start cancelling due to InvalidArgumentError(): Graph execution error:\n\nDetected at node A\n"
        "anything at all\n\nassertion failed: [x]\n[Op:__inference_bad_70]"
    )
    assert records(f"ERROR:tensorflow:{error}\nprinted") == [error, "printed"]


def test_a_record_without_end_is_cut() -> None:
    found = records("\n".join([f"{HEAD}a", *(f"  {number}" for number in range(5000))]))
    assert len(found) == 6
    assert sum(len(one.split("\n")) for one in found) == 5001

"""What OTEL_TF_PROFILE says, and when steps have become slow."""

from __future__ import annotations

import random
import signal

import pytest

from otel_tf.instrumentation.profiler.policy import Policy, SlowSteps
from otel_tf.instrumentation.profiler.request import signal_of


@pytest.mark.parametrize(
    ("text", "policy"),
    [
        ("off", Policy()),
        ("", Policy()),
        ("every=1000,steps=2", Policy(every=1000, steps=2)),
        (" every = 10 ", Policy(every=10)),
        ("on-slow", Policy(on_slow=True)),
        ("on-slow,every=7,steps=3", Policy(every=7, steps=3, on_slow=True)),
        ("every=7,with-collectives", Policy(every=7, collectives=True)),
        ("with-collectives", Policy(collectives=True)),
    ],
)
def test_what_it_says(text: str, policy: Policy) -> None:
    assert Policy.parse(text) == policy
    assert policy.watches == (policy.every > 0 or policy.on_slow)


@pytest.mark.parametrize(
    "text", ["on", "every", "every=0", "every=-1", "every=x", "steps=2", "off,every=1", ","]
)
def test_what_it_cannot_say(text: str) -> None:
    with pytest.raises(ValueError, match=r"off, every=N|how many steps"):
        Policy.parse(text)


@pytest.mark.parametrize("name", ["SIGUSR2", "usr2", "USR2", str(int(signal.SIGUSR2))])
def test_names_of_a_signal(name: str) -> None:
    assert signal_of(name) is signal.SIGUSR2


@pytest.mark.parametrize("name", ["SIGNOTHING", "0", "9999", "KILL", "x"])
def test_no_names_of_a_signal(name: str) -> None:
    with pytest.raises(ValueError, match=r"signal|Signals|handled"):
        signal_of(name)


def test_steps_that_stay_slow_are_found_and_one_slow_step_is_not() -> None:
    slow = SlowSteps()
    noise = random.Random(3)
    usual = [int(noise.gauss(10e6, 1e6)) for _ in range(500)]
    assert not any(slow.saw([step]) for step in usual)
    assert not slow.saw([500_000_000])
    assert not any(slow.saw([step]) for step in usual[:50])
    found = [slow.saw([20_000_000]) for _ in range(10)]
    assert not any(found[:4])
    assert found[-1]
    slow.forget()
    assert not any(slow.saw([20_000_000]) for _ in range(500))

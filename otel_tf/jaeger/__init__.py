"""A Jaeger of our own on this machine: found, started with our configuration, stopped again.

>>> binary = find_binary()
>>> with start(binary) as jaeger:
...     print(jaeger.ui, jaeger.otlp_http)
"""

from __future__ import annotations

from otel_tf.jaeger.binary import find_binary
from otel_tf.jaeger.docker import find_docker, start_in_docker
from otel_tf.jaeger.ports import DEFAULT_PORTS, Ports
from otel_tf.jaeger.process import Jaeger, JaegerError, start

__all__ = [
    "DEFAULT_PORTS",
    "Jaeger",
    "JaegerError",
    "Ports",
    "find_binary",
    "find_docker",
    "start",
    "start_in_docker",
]

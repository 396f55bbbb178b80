"""Talking to TensorFlow's ProfilerService, which every `tf.distribute.Server` offers on its own port.

`tf.profiler.experimental.client.trace` speaks the same protocol, but prints to the program's standard output,
cannot be told that the last step is over, and holds up an exit of the process. The messages are those of
tensorflow/tsl/profiler/protobuf/profiler_service.proto, which TensorFlow does not bring for Python; gRPC is a
requirement of its own.
"""

from __future__ import annotations

import functools
from typing import Any

__all__ = ["UNLIMITED", "Messages", "messages"]

#: A profile is of any size; the channel's default would refuse one of more than 4 MB.
UNLIMITED = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
PROFILE = "/tensorflow.ProfilerService/Profile"
TERMINATE = "/tensorflow.ProfilerService/Terminate"


class Messages:
    """Encodes requests and decodes answers; messages within messages stay bytes."""

    def __init__(self) -> None:
        from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

        field = descriptor_pb2.FieldDescriptorProto
        file = descriptor_pb2.FileDescriptorProto(name="otel_tf/profiler_service.proto", package="otel_tf")
        for name, fields in _FIELDS.items():
            message = file.message_type.add(name=name)
            for number, (label, kind) in fields.items():
                message.field.add(
                    name=label,
                    number=number,
                    type=getattr(field, f"TYPE_{kind}"),
                    label=field.LABEL_OPTIONAL,
                )
        pool = descriptor_pool.DescriptorPool()
        pool.Add(file)
        self._classes: dict[str, Any] = {
            name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"otel_tf.{name}"))
            for name in _FIELDS
        }

    def profile(self, session_id: str, duration_ms: int) -> bytes:
        """Returns a request to begin a profile; the answer comes when it has ended.

        Args:
            session_id: To end it by; no other one's.
            duration_ms: When it ends by itself.
        """
        from tensorflow.tsl.profiler.protobuf import profiler_options_pb2

        # The highest level: below it, cheap ops, such as reads of variables, are left out.
        options = profiler_options_pb2.ProfileOptions(
            version=1, device_tracer_level=1, host_tracer_level=3, duration_ms=duration_ms
        )
        request: bytes = self._classes["ProfileRequest"](
            duration_ms=duration_ms,
            opts=options.SerializeToString(),
            session_id=session_id,
            emit_xspace=True,
        ).SerializeToString()
        return request

    def terminate(self, session_id: str) -> bytes:
        """Returns a request to end a profile."""
        request: bytes = self._classes["TerminateRequest"](session_id=session_id).SerializeToString()
        return request

    def xspace(self, answer: bytes) -> bytes:
        """Returns the XSpace of an answer; empty where nothing was recorded.

        Raises:
            google.protobuf.message.DecodeError: It is no answer.
        """
        found: bytes = self._classes["ProfileResponse"].FromString(answer).xspace
        return found


_FIELDS: dict[str, dict[int, tuple[str, str]]] = {
    "ProfileRequest": {
        1: ("duration_ms", "UINT64"),
        4: ("opts", "BYTES"),
        6: ("session_id", "STRING"),
        9: ("emit_xspace", "BOOL"),
    },
    "ProfileResponse": {8: ("xspace", "BYTES")},
    "TerminateRequest": {1: ("session_id", "STRING")},
}

#: Made once, where a profile is taken.
messages = functools.cache(Messages)

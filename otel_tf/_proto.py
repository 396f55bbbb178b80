"""Protobuf: messages described in code, read and written as Arrow columns (by `ptars`), and their pieces."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from typing import Any

__all__ = ["Messages", "field", "handlers", "varint"]

#: message: (field, number, protobuf type or message, repeated). Only numbers are on the wire, names are ours.
Messages = Mapping[str, Sequence[tuple[str, int, str, bool]]]


def handlers(
    package: str, messages: Messages, oneof: Mapping[str, Container[str]], wanted: Sequence[str]
) -> dict[str, Any]:
    """Returns what turns serialized messages into Arrow and back, by message.

    Args:
        package: Where the messages are, such as ``otel_tf.spool``; each description has its own.
        messages: All of them, also those that others hold.
        oneof: Of a message, the fields of which one is set, and which one matters also where it is 0 or "".
        wanted: The messages that are read or written by themselves.
    """
    import ptars
    from google.protobuf import descriptor_pb2, descriptor_pool

    field_type = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(
        name=f"{package.replace('.', '/')}.proto", package=package, syntax="proto3"
    )
    for name, fields in messages.items():
        message = file.message_type.add(name=name)
        if name in oneof:
            message.oneof_decl.add(name="value")
        for name_of_field, number, kind, repeated in fields:
            added = message.field.add(name=name_of_field, number=number, json_name=name_of_field)
            added.label = field_type.LABEL_REPEATED if repeated else field_type.LABEL_OPTIONAL
            if kind in messages:
                added.type, added.type_name = field_type.TYPE_MESSAGE, f".{package}.{kind}"
            else:
                added.type = getattr(field_type, f"TYPE_{kind.upper()}")
            if name_of_field in oneof.get(name, ()):
                added.oneof_index = 0
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    made = ptars.HandlerPool([pool.FindFileByName(file.name)])
    return {name: made.get_for_message(pool.FindMessageTypeByName(f"{package}.{name}")) for name in wanted}


def varint(value: int) -> bytes:
    """Encodes a non-negative integer below 2**64, seven bits a byte, the lowest first."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def field(tag: bytes, content: bytes) -> bytes:
    """Encodes a field that has its length before it: a text, bytes or a message."""
    return tag + varint(len(content)) + content

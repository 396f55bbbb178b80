"""Jaeger's query API over gRPC, version 3: a stream of OTLP protobuf, filtered by attributes.

The service is ``jaeger.api_v3.QueryService``, described in ``query_service.proto`` of
https://github.com/jaegertracing/jaeger-idl. Its few request messages are described again here; traces
come back as serialized ``TracesData``, which go to Arrow as they are.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from otel_tf.correlator.sources.extract import Chunk, extract
from otel_tf.correlator.sources.jaeger_api import Found, Search, TooDeep, Unanswered
from otel_tf.correlator.sources.otlp_proto import Messages, parse_messages
from otel_tf.correlator.sources.shape import proto_handler
from otel_tf.correlator.sources.skipped import Skipped
from otel_tf.errors import UserError

__all__ = ["GrpcApi"]

_SERVICE = "/jaeger.api_v3.QueryService/"
_CONNECT_S = 3.0
#: For a whole answer, which may be all of a storage.
_ANSWER_S = 3600.0
_BATCH_BYTES = 8 << 20

_FIELDS: dict[str, list[tuple[str, int, str]]] = {
    "Timestamp": [("seconds", 1, "INT64"), ("nanos", 2, "INT32")],
    "Pair": [("key", 1, "STRING"), ("value", 2, "STRING")],
    "Query": [
        ("service_name", 1, "STRING"),
        ("attributes", 3, "Pair"),
        ("start_time_min", 4, "Timestamp"),
        ("start_time_max", 5, "Timestamp"),
        ("search_depth", 8, "INT32"),
        ("raw_traces", 9, "BOOL"),
    ],
    "FindTraces": [("query", 1, "Query")],
    "GetTrace": [("trace_id", 1, "STRING"), ("raw_traces", 4, "BOOL")],
    "Services": [("services", 1, "STRING")],
}
_REPEATED = ("attributes", "services")  # a map is, on the wire, pairs


class GrpcApi:
    """An `Api`.

    Args:
        target: ``host:port``.
        secure: Whether to speak TLS.
        skipped: Where unusable spans are counted.
        source: Number of the source, for the order of messages.
    """

    filters = True
    streams = True
    most = 1_000_000

    def __init__(self, target: str, *, secure: bool, skipped: Skipped, source: int) -> None:
        import grpc
        from grpc.experimental import ChannelOptions

        self.name = target
        options = [
            # A trace is one message, of any size; without a thread in between it costs less than half.
            ("grpc.max_receive_message_length", -1),
            (ChannelOptions.SingleThreadedUnaryStream, 1),
        ]
        self._channel = (
            grpc.secure_channel(target, grpc.ssl_channel_credentials(), options)
            if secure
            else grpc.insecure_channel(target, options)
        )
        self._skipped, self._source = skipped, source

    def services(self) -> list[str]:
        """See `Api.services`."""
        import grpc

        call = self._channel.unary_unary(f"{_SERVICE}GetServices")
        try:
            answer = _message("Services").FromString(call(b"", timeout=_CONNECT_S))
        except grpc.RpcError as error:
            raise Unanswered(f"{self.name}: no Jaeger there over gRPC ({_said(error)})") from None
        return sorted(answer.services)

    def find(self, search: Search) -> Iterator[Found]:
        """See `Api.find`."""
        yield from self._found(self.messages(search))

    def messages(self, search: Search) -> Iterator[bytes]:
        """Yields what `find` reads: serialized ``TracesData``, of memory storage one a trace."""
        request = _message("FindTraces")()
        query = request.query
        query.service_name, query.search_depth, query.raw_traces = search.service, search.most, True
        for key, value in search.attributes.items():
            query.attributes.add(key=key, value=value)
        for time, time_ns in ((query.start_time_min, search.begin_ns), (query.start_time_max, search.end_ns)):
            time.seconds, time.nanos = divmod(time_ns, 10**9)
        return self._answers("FindTraces", request)

    def trace(self, trace_id: int) -> Iterator[Found]:
        """See `Api.trace`."""
        request = _message("GetTrace")(trace_id=f"{trace_id:032x}", raw_traces=True)
        yield from self._found(self._answers("GetTrace", request))

    def close(self) -> None:
        """Closes the connection."""
        self._channel.close()

    def _found(self, messages: Iterator[bytes]) -> Iterator[Found]:
        for batch in _batches(messages):
            yield Found(self._parse(batch), len(batch))

    def _answers(self, method: str, request: Any) -> Iterator[bytes]:
        import grpc

        call = self._channel.unary_stream(f"{_SERVICE}{method}")
        try:
            yield from call(request.SerializeToString(), timeout=_ANSWER_S)
        except grpc.RpcError as error:
            if "search depth" in (error.details() or ""):
                raise TooDeep(error.details()) from None
            if error.code() is not grpc.StatusCode.NOT_FOUND and "trace not found" not in error.details():
                raise UserError(f"{self.name}: {_said(error)}") from None

    def _parse(self, messages: list[bytes]) -> Chunk:
        # Serialized messages one after another are one message.
        together = b"".join(messages)
        try:
            batch = proto_handler().list_to_record_batch([together])
        except ValueError:
            # Message by message, to leave out only what is damaged.
            return parse_messages(Messages(list(messages), self.name, self._source), self._skipped)
        return extract(
            _by_resource(batch.column(0).flatten()),
            self._skipped,
            where=lambda _: self.name,
            order=(self._source,),
        )


def _said(error: Any) -> str:
    details = (error.details() or "").partition("\n")[0][:200]
    return f"{error.code().name}: {details}" if details else str(error.code().name)


def _batches(messages: Iterable[bytes]) -> Iterator[list[bytes]]:
    batch: list[bytes] = []
    size = 0
    for message in messages:
        batch.append(message)
        size += len(message)
        if size >= _BATCH_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _by_resource(resource_spans: pa.StructArray) -> pa.StructArray:
    """Returns the same spans with every resource once; in Jaeger's answers each span brings its own."""
    attributes = resource_spans.field("resource").field("attributes")
    pairs = attributes.flatten()
    value = pairs.field("value")
    # Lists and maps are not compared: nothing is read from them.
    scalars = [value.field(name) for name in ("stringValue", "intValue", "boolValue", "doubleValue")]
    parts = [pairs.field("key"), *(part.cast(pa.string()).fill_null("\0") for part in scalars)]
    texts = pc.binary_join(_list(attributes, pc.binary_join_element_wise(*parts, "\1")), "\2")
    code = texts.dictionary_encode().indices.to_numpy(zero_copy_only=False)
    order = np.argsort(code, kind="stable")
    firsts = np.flatnonzero(np.diff(code[order], prepend=-1))
    scopes = resource_spans.field("scopeSpans").take(pa.array(order))
    ends = _ends(scopes)[np.append(firsts, len(order))]
    merged = pa.ListArray.from_arrays(pa.array(ends, pa.int32()), scopes.flatten())
    resource = resource_spans.field("resource").take(pa.array(order[firsts]))
    return pa.StructArray.from_arrays([resource, merged], names=["resource", "scopeSpans"])


def _ends(lists: pa.ListArray) -> Any:
    """Returns where lists begin in what `flatten` gives of them, and the end; null is as empty."""
    lengths = lists.value_lengths().fill_null(0).to_numpy(zero_copy_only=False)
    return np.concatenate([[0], np.cumsum(lengths)])


def _list(like: pa.ListArray, items: pa.Array) -> pa.ListArray:
    return pa.ListArray.from_arrays(pa.array(_ends(like), pa.int32()), items)


@cache
def _message(name: str) -> Any:
    """Returns the class of a message of `_FIELDS`."""
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    kind = descriptor_pb2.FieldDescriptorProto
    package = "otel_tf.jaeger"
    file = descriptor_pb2.FileDescriptorProto(name="otel_tf/jaeger.proto", package=package, syntax="proto3")
    for message, fields in _FIELDS.items():
        made = file.message_type.add(name=message)
        for field, number, of in fields:
            added = made.field.add(name=field, number=number)
            added.label = kind.LABEL_REPEATED if field in _REPEATED else kind.LABEL_OPTIONAL
            if of in _FIELDS:
                added.type, added.type_name = kind.TYPE_MESSAGE, f".{package}.{of}"
            else:
                added.type = getattr(kind, f"TYPE_{of}")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{package}.{name}"))

"""Resources: who a span speaks of. This process's own, and those of tasks it writes on behalf of."""

from __future__ import annotations

import contextlib
import os
import socket
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from otel_tf import semconv

if TYPE_CHECKING:
    from otel_tf.identity import Identity

__all__ = ["TaskResource", "own_attributes", "task_attributes"]

#: What belongs to the process that detected it, and must not be said of another task.
_OWN_PREFIXES = ("host.", "process.", "k8s.", "container.", "os.", "cloud.", "thread.", "faas.", "device.")

_SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")

#: Kubernetes' downward API can put these into any variable; the names are those that OpenTelemetry's
#: operator injects, then the customary ones.
_K8S = {
    "k8s.pod.name": ("OTEL_RESOURCE_ATTRIBUTES_POD_NAME", "K8S_POD_NAME", "POD_NAME", "MY_POD_NAME"),
    "k8s.pod.uid": ("OTEL_RESOURCE_ATTRIBUTES_POD_UID", "K8S_POD_UID", "POD_UID", "MY_POD_UID"),
    "k8s.namespace.name": (
        "OTEL_RESOURCE_ATTRIBUTES_POD_NAMESPACE",
        "K8S_NAMESPACE_NAME",
        "K8S_NAMESPACE",
        "POD_NAMESPACE",
        "MY_POD_NAMESPACE",
    ),
    "k8s.node.name": ("OTEL_RESOURCE_ATTRIBUTES_NODE_NAME", "K8S_NODE_NAME", "NODE_NAME", "MY_NODE_NAME"),
    "k8s.container.name": ("K8S_CONTAINER_NAME", "CONTAINER_NAME"),
}


class TaskResource:
    """A resource as spans refer to it: compared by identity, its attributes fixed but for a fork.

    Attributes:
        attributes: The resource's attributes.
        schema_url: Schema of the attributes, or "".
        templates: What the encoders prepared for this resource, by encoder.
    """

    __slots__ = ("attributes", "schema_url", "templates")

    def __init__(self, attributes: Mapping[str, Any], schema_url: str = "") -> None:
        self.attributes = dict(attributes)
        self.schema_url = schema_url
        self.templates: dict[str, object] = {}

    def replace(self, attributes: Mapping[str, Any]) -> None:
        """Puts other attributes in place; only before the first span of a process."""
        self.attributes = dict(attributes)
        self.templates = {}

    def as_json(self) -> str:
        """Returns the attributes in OTLP's JSON, the elements of a ``KeyValue`` array."""
        from otel_tf.telemetry import _json
        from otel_tf.telemetry._values import clean

        found = self.templates.get("json_attributes")
        if not isinstance(found, str):
            found = self.templates["json_attributes"] = _json.attributes(clean(self.attributes))
        return found

    @property
    def process(self) -> str:
        """The process's name, ``service.instance.id``."""
        return str(self.attributes.get(semconv.SERVICE_INSTANCE_ID, ""))


def own_attributes(
    identity: Identity, *, provider: Mapping[str, Any] | None = None, forked: bool = False
) -> dict[str, Any]:
    """Returns the attributes of this process's own resource.

    OpenTelemetry's detectors come first (``OTEL_RESOURCE_ATTRIBUTES``, ``OTEL_SERVICE_NAME``, and those
    that ``OTEL_EXPERIMENTAL_RESOURCE_DETECTORS`` names), then what we know and they left out. The
    ``tensorflow.*`` attributes are always ours, since the correlator depends on them.

    Args:
        identity: Who this process is.
        provider: The resource of the program's own tracer provider; it wins over what we would detect.
        forked: A fork's child counts its sequence numbers anew, so it needs a process name of its own.
    """
    from opentelemetry.sdk.resources import OTELResourceDetector, Resource

    explicit = OTELResourceDetector().detect().attributes
    attributes: dict[str, Any] = dict(Resource.create().attributes)
    if provider is not None:
        attributes.update(provider)
    if str(attributes.get(semconv.SERVICE_NAME, "")).startswith("unknown_service"):
        attributes[semconv.SERVICE_NAME] = _script_name()
    # The SDK makes up a random instance id; ours names the task.
    attributes[semconv.SERVICE_INSTANCE_ID] = explicit.get(semconv.SERVICE_INSTANCE_ID, identity.process)
    if forked:
        attributes[semconv.SERVICE_INSTANCE_ID] = f"{attributes[semconv.SERVICE_INSTANCE_ID]}.{os.getpid()}"
    for key, value in {semconv.HOST_NAME: identity.host_name, **_host(), **_kubernetes(os.environ)}.items():
        attributes.setdefault(key, value)
    attributes[semconv.PROCESS_PID] = os.getpid()
    created = _process_created()
    if created:
        attributes["process.creation.time"] = created
    attributes.update(
        _tensorflow(identity, identity.task_type, identity.task_index, identity.clock_domain),
    )
    version = _tensorflow_version()
    if version:
        attributes[semconv.TENSORFLOW_VERSION] = version
    return attributes


def task_attributes(
    own: Mapping[str, Any],
    identity: Identity,
    task_type: str,
    task_index: int,
    *,
    clock_domain: str,
    host_name: str | None = None,
    host_id: str | None = None,
    pid: int | None = None,
) -> dict[str, Any]:
    """Returns the attributes of another task of this run, on whose behalf this process writes.

    What was detected about this process and its host is left out: of the other task only that is said
    which the caller knows.
    """
    attributes = {key: value for key, value in own.items() if not key.startswith(_OWN_PREFIXES)}
    attributes[semconv.SERVICE_INSTANCE_ID] = identity.process_of(task_type, task_index)
    attributes.update(_tensorflow(identity, task_type, task_index, clock_domain))
    for key, value in (
        (semconv.HOST_NAME, host_name),
        (semconv.HOST_ID, host_id),
        (semconv.PROCESS_PID, pid),
    ):
        if value is not None:
            attributes[key] = value
    return attributes


def _tensorflow(identity: Identity, task_type: str, task_index: int, clock_domain: str) -> dict[str, Any]:
    attributes: dict[str, Any] = {
        semconv.RUN_ID: identity.run_id,
        semconv.TASK_TYPE: task_type,
        semconv.TASK_INDEX: task_index,
        semconv.CLUSTER_SIZE: identity.cluster_size,
        semconv.CLOCK_DOMAIN: clock_domain,
    }
    if identity.strategy:
        attributes[semconv.STRATEGY] = identity.strategy
    return attributes


def _script_name() -> str:
    """Returns the running script's name; for ``python -m package`` the package's."""
    script = Path(sys.argv[0]) if sys.argv and sys.argv[0] not in ("", "-", "-c", "-m") else None
    if script is None:
        return "tensorflow"
    return script.parent.name if script.stem == "__main__" else script.stem


def _host() -> dict[str, Any]:
    """Returns what the SDK's own host detector finds (``host.id``), where the SDK has one."""
    from opentelemetry.util._importlib_metadata import entry_points

    for entry in entry_points(group="opentelemetry_resource_detector", name="host"):
        try:
            found = dict(entry.load()().detect().attributes)
        except Exception:
            continue
        return {key: value for key, value in found.items() if key == semconv.HOST_ID}
    return {}


def _kubernetes(environ: Mapping[str, str]) -> dict[str, str]:
    """Returns ``k8s.*`` attributes where the environment gives them; nothing is guessed."""
    found: dict[str, str] = {}
    if not environ.get("KUBERNETES_SERVICE_HOST"):
        return found
    for key, names in _K8S.items():
        value = next((environ[name] for name in names if environ.get(name)), None)
        if value:
            found[key] = value
    if "k8s.pod.name" not in found:
        # Kubernetes sets a pod's host name to the pod's name, unless it uses the node's network.
        found["k8s.pod.name"] = environ.get("HOSTNAME") or socket.gethostname()
    if "k8s.namespace.name" not in found:
        with contextlib.suppress(OSError, ValueError):
            found["k8s.namespace.name"] = _SERVICE_ACCOUNT.read_text(encoding="ascii").strip()
    return found


def _process_created() -> str | None:
    """Returns when this process began, ISO 8601 in UTC: it tells incarnations of a task apart."""
    import datetime

    try:
        stat = Path("/proc/self/stat").read_text(encoding="utf-8", errors="replace")
        # The command's name may hold spaces and parentheses; field 22 counts from after it.
        ticks = int(stat.rpartition(")")[2].split()[19])
        boot = next(
            int(line.split()[1])
            for line in Path("/proc/stat").read_text(encoding="ascii").splitlines()
            if line.startswith("btime ")
        )
    except (OSError, ValueError, IndexError, StopIteration):
        return None
    seconds = boot + ticks / os.sysconf("SC_CLK_TCK")
    moment = datetime.datetime.fromtimestamp(seconds, tz=datetime.timezone.utc)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _tensorflow_version() -> str | None:
    from importlib import metadata

    for name in ("tensorflow", "tensorflow-cpu", "tf-nightly", "tensorflow-intel", "tensorflow-macos"):
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return None

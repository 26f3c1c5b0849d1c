"""Exports the numbers of a live view: as JSON lines, for Prometheus, and for OpenTelemetry.

One table lists the numbers; each exporter writes them in its own way. They are of the last minute, in seconds, bytes
and fractions. The libraries are extras.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import msgspec

from steptime.answer.printable import one_line
from steptime.errors import OutputError, UsageError
from steptime.live.view import LiveView, RankView
from steptime.recording.recording import DeviceSample


@dataclass(frozen=True, slots=True)
class Number:
    """Exported number. name: without the program's prefix. total: True for a growing counter. labels: (name, value)."""

    name: str
    unit: str
    help: str
    value: float
    labels: tuple[tuple[str, str], ...] = ()
    total: bool = False


def numbers_of(view: LiveView) -> tuple[Number, ...]:
    return tuple(number for each in (*map(_of_rank, view.ranks), _of_job(view)) for number in each)


def _of_rank(rank: RankView) -> Iterator[Number]:
    who = (("rank", str(rank.rank) if rank.rank is not None else rank.name), ("host", rank.host))
    yield Number("steps", "", "Training steps since the job began.", rank.total, who, total=True)
    if rank.step is not None:
        yield Number(
            "step", "seconds", "Mean of the steps of the last minute that are not excluded.", rank.step.value / 1e9, who
        )
    if rank.rate is not None:
        yield Number("samples_per_second", "", "Samples per second over the whole last minute.", rank.rate, who)
    shares: dict[str, float] = {}
    for part in (*rank.phases, *rank.between):  # an evaluation may be within a step, and between two
        shares[part.name] = shares.get(part.name, 0.0) + part.share
    for name, share in shares.items():
        named = (*who, ("part", name))
        yield Number("part", "ratio", "Share of the last minute by phase, or by what lay between steps.", share, named)
    if rank.queue is not None:
        yield Number("loader_ready", "", "Batches that were ready when the job asked.", rank.queue.ready, who)
    if rank.bytes is not None:
        yield Number("memory", "bytes", "Of the process: on its device where it has one.", rank.bytes, who)
    collecting = rank.collecting / 1e9
    yield Number(
        "garbage_collection", "seconds", "Time in Python's garbage collections in the last minute.", collecting, who
    )
    yield Number("late", "", "1 where the other ranks wait for this one.", float(rank.late), who)


def _of_job(view: LiveView) -> Iterator[Number]:
    running = float(view.state == "running")
    yield Number("running", "", "1 while the job runs.", running)
    yield Number("waiting", "seconds", "Time per step that the ranks wait for the late one.", view.waiting / 1e9)
    sample = view.machine
    if sample is None:
        return
    yield Number("job_cpus", "", "CPUs that the job uses.", sample.job_cpu)
    yield Number("other_cpus", "", "CPUs that other programs use.", sample.other_cpu)
    for device in sample.devices:
        yield from _of_device(device)


def _of_device(device: DeviceSample) -> Iterator[Number]:
    which = (("gpu", str(device.index) if device.index is not None else ""), ("uuid", device.uuid))
    known = (
        ("gpu_utilization", "ratio", "Share of time in which some kernel ran on a device of the job's.",
         None if device.utilization is None else device.utilization / 100),
        ("gpu_memory", "bytes", "Memory in use on the device.", device.memory_bytes),
        ("gpu_clock", "hertz", "Clock of the device.", None if device.clock_mhz is None else device.clock_mhz * 1e6),
        ("gpu_power", "watts", "Power that the device draws.", device.power_watts),
    )  # fmt: skip
    yield from (Number(name, unit, help, float(value), which) for name, unit, help, value in known if value is not None)


def exporter(
    format: str, write: Callable[[str], None], *, every: float, address: str, port: int
) -> JsonLines | Prometheus | OpenTelemetry:
    """Exporter of a format: "jsonl", "prometheus" or "otlp". write: function that prints a line. every: seconds between
    two exports. address, port: of the server for "prometheus". Raises UsageError and OutputError."""
    if format == "jsonl":
        return JsonLines(write)
    if format == "otlp":
        return OpenTelemetry(every, write)
    metrics = Prometheus(address, port)
    write(f"http://{address}:{metrics.port}/metrics\n")
    return metrics


class JsonLines:
    """Exporter that writes one JSON line per view: its fields, and the time."""

    def __init__(self, write: Callable[[str], None]) -> None:
        self._write = write

    def show(self, view: LiveView) -> None:
        fields = {"epoch_seconds": round(time.time(), 3), **msgspec.to_builtins(view)}
        fields["machine"] = next(reversed(fields.pop("samples")), None)
        self._write(msgspec.json.encode(fields).decode() + "\n")

    def close(self) -> None:
        """Does nothing, since nothing is pending."""


class Prometheus:
    """Exporter that serves /metrics to scrapers. Raises OutputError if its port is taken, UsageError without the
    extra."""

    def __init__(self, address: str, port: int) -> None:
        library = _imported("prometheus_client", "prometheus")
        self.registry: Any = library.CollectorRegistry()
        self._numbers: tuple[Number, ...] = ()
        self.registry.register(self)
        try:
            self._server, _ = library.start_http_server(port, address, self.registry)
        except OSError as error:
            raise OutputError(
                "port-taken",
                f"{f'Port {port} at {address}' if port else address} cannot be opened ({error.strerror}). Give "
                "another one with --port or --address.",
            ) from None
        self.port = int(self._server.server_address[1])

    def collect(self) -> Iterable[Any]:
        """Metric families; called by the Prometheus client."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        families: dict[str, Any] = {}
        for number in self._numbers:
            kind = CounterMetricFamily if number.total else GaugeMetricFamily
            names, values = [name for name, _ in number.labels], [value for _, value in number.labels]
            name = "_".join(filter(None, ("steptime", number.name, number.unit)))
            family = families.setdefault(name, kind(name, number.help, labels=names))
            family.add_metric(values, number.value)
        return families.values()

    def show(self, view: LiveView) -> None:
        self._numbers = numbers_of(view)

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


class OpenTelemetry:
    """Exporter by OTLP/HTTP to OTEL_EXPORTER_OTLP_ENDPOINT. write: print function. Raises UsageError without the
    extra."""

    def __init__(self, period: float, write: Callable[[str], None]) -> None:
        _imported("opentelemetry.exporter.otlp.proto.http", "otlp")
        self._unsent = _Unsent(write)
        LIBRARY.addHandler(self._unsent)
        LIBRARY.propagate = False
        from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
        from opentelemetry.sdk.metrics import MeterProvider
        from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
        from opentelemetry.sdk.resources import Resource

        self._numbers: tuple[Number, ...] = ()
        self._known: set[str] = set()
        self._lock = threading.Lock()
        reader = PeriodicExportingMetricReader(OTLPMetricExporter(), export_interval_millis=1000 * period)
        resource = Resource.create({"service.name": "steptime"})
        self._provider = MeterProvider([reader], resource=resource, shutdown_on_exit=False)
        self._meter = self._provider.get_meter("steptime")

    def show(self, view: LiveView) -> None:
        numbers = numbers_of(view)
        with self._lock:
            self._numbers = numbers
        for number in numbers:
            if number.name not in self._known:
                self._known.add(number.name)
                make = self._meter.create_observable_counter if number.total else self._meter.create_observable_gauge
                unit = {"seconds": "s", "bytes": "By", "ratio": "1", "hertz": "Hz", "watts": "W"}.get(number.unit, "1")
                make(f"steptime.{number.name}", [self._observing(number.name)], unit, number.help)

    def _observing(self, name: str) -> Callable[[Any], list[Any]]:
        from opentelemetry.metrics import Observation

        def observe(_: Any) -> list[Any]:
            with self._lock:
                return [Observation(each.value, dict(each.labels)) for each in self._numbers if each.name == name]

        return observe

    def close(self) -> None:
        self._provider.shutdown()
        LIBRARY.removeHandler(self._unsent)
        LIBRARY.propagate = True


LIBRARY = logging.getLogger("opentelemetry.exporter")


class _Unsent(logging.Handler):
    """Handler that reports once what the library logs for every failed attempt."""

    def __init__(self, write: Callable[[str], None]) -> None:
        super().__init__(logging.WARNING)
        self._write: Callable[[str], None] | None = write

    def emit(self, record: logging.LogRecord) -> None:
        write, self._write = self._write, None
        if write is not None:
            where = os.environ.get("OTEL_EXPORTER_OTLP_ENDPOINT") or "http://localhost:4318, the default"
            message = one_line(record.getMessage())[:200]
            write(
                f"The receiver at {where} did not accept the metrics ({message}). steptime keeps sending them; "
                "OTEL_EXPORTER_OTLP_ENDPOINT names another receiver.\n"
            )


def _imported(name: str, extra: str) -> Any:
    import importlib

    try:
        return importlib.import_module(name)
    except ImportError:
        raise UsageError(
            "no-export-library",
            f"--export {extra} needs a library that is not installed: pip install 'steptime[{extra}]'",
        ) from None

"""The numbers of a running job, as other tools read them: by their own parsers, and over the wire."""

from __future__ import annotations

import http.server
import itertools
import json
import re
import socket
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from journals import MS, JournalBuilder
from preloading import steptime_words

from steptime.errors import OutputError, UsageError
from steptime.live import export
from steptime.live.export import JsonLines, OpenTelemetry, Prometheus, numbers_of
from steptime.live.view import LiveView, Queue
from steptime.live.watching import Watcher

DASHBOARD = json.loads((Path(__file__).parents[2] / "docs" / "grafana-dashboard.json").read_text(encoding="utf-8"))
HOST = 'a "quoted\\ host\n'


@pytest.fixture
def view(tmp_path: Path) -> LiveView:
    built = JournalBuilder()
    built.process_facts = {"rank": 0, "world_size": 1, "host": HOST}
    built.samples = [
        {"monotonic_ns": built.now, "job_cpu": 1.5, "other_cpu": 0.0, "resident_bytes": 1, "devices": [
            {"uuid": "GPU-2f", "index": 2, "utilization": 40.0}, {"uuid": "GPU-3f", "index": 3, "utilization": 71.0},
        ]}
    ]  # fmt: skip
    built.fact("loader", identity=1, loader=1, dataset="D", batch_size=8)
    for _ in range(50):
        built.next(5 * MS).forward(5 * MS).backward(9 * MS).step(MS)
    watcher = Watcher(built.write(tmp_path / "r"))
    found = watcher.look()
    watcher.close()
    return found


def test_prometheus_text_is_what_its_own_parser_reads(view: LiveView) -> None:
    pytest.importorskip("prometheus_client")
    from prometheus_client.parser import text_string_to_metric_families

    exporter = Prometheus("127.0.0.1", 0)
    try:
        exporter.show(view)
        with urllib.request.urlopen(f"http://127.0.0.1:{exporter.port}/metrics") as answer:
            families = {each.name: each for each in text_string_to_metric_families(answer.read().decode())}
        with pytest.raises(OutputError, match="cannot be opened"):
            Prometheus("127.0.0.1", exporter.port)
    finally:
        exporter.close()
    assert families["steptime_steps"].type == "counter"
    assert families["steptime_steps"].samples[0].name == "steptime_steps_total"
    assert families["steptime_steps"].samples[0].value == 50
    step = families["steptime_step_seconds"].samples[0]
    assert (step.value, step.labels) == (0.02, {"rank": "0", "host": HOST})
    assert families["steptime_samples_per_second"].samples[0].value == pytest.approx(400)
    parts = {sample.labels["part"]: sample.value for sample in families["steptime_part_ratio"].samples}
    assert parts["input"] == 0.25
    assert sum(parts.values()) == pytest.approx(1)
    busy = [(each.labels, each.value) for each in families["steptime_gpu_utilization_ratio"].samples]
    assert busy == [({"gpu": "2", "uuid": "GPU-2f"}, 0.4), ({"gpu": "3", "uuid": "GPU-3f"}, 0.71)]
    assert families["steptime_running"].samples[0].value == 1


@pytest.fixture
def received() -> Iterator[tuple[int, list[bytes]]]:
    """A receiver of OTLP over HTTP in this process: its port, and the bodies that have come."""
    bodies: list[bytes] = []

    class Receiver(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            assert self.path == "/v1/metrics"
            bodies.append(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            """Silence."""

    server = http.server.HTTPServer(("127.0.0.1", 0), Receiver)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    yield server.server_port, bodies
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_receiver_of_otlp_gets_the_numbers(
    view: LiveView, received: tuple[int, list[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http")
    from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

    port, bodies = received
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{port}")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_COMPRESSION", "none")
    exporter = OpenTelemetry(60.0, print)
    exporter.show(view)
    exporter.close()
    request = ExportMetricsServiceRequest.FromString(bodies[-1])
    metrics = {each.name: each for each in request.resource_metrics[0].scope_metrics[0].metrics}
    assert metrics["steptime.step"].unit == "s"
    assert [point.as_double for point in metrics["steptime.step"].gauge.data_points] == [0.02]
    assert metrics["steptime.steps"].sum.is_monotonic
    labels = {each.key: each.value.string_value for each in metrics["steptime.step"].gauge.data_points[0].attributes}
    assert labels == {"rank": "0", "host": HOST}
    parts = [number for number in numbers_of(view) if number.name == "part"]
    assert len(metrics["steptime.part"].gauge.data_points) == len(parts) > 1
    assert len(metrics) == len({number.name for number in numbers_of(view)})


def test_a_receiver_that_is_not_there_is_reported_once(
    view: LiveView, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        endpoint = f"http://127.0.0.1:{free.getsockname()[1]}"
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")
    reported: list[str] = []
    exporter = OpenTelemetry(60.0, reported.append)
    exporter.show(view)
    exporter.close()
    (sentence,) = reported
    assert f"The receiver at {endpoint} did not accept the metrics" in sentence
    assert capfd.readouterr().err == "", "nothing of the library's"


def test_a_part_that_lies_in_steps_and_between_them_is_one_number(view: LiveView) -> None:
    rank = view.ranks[0]
    part = replace(rank.phases[0], total=rank.wall, share=1.0)
    twice = replace(view, ranks=(replace(rank, between=(part,), wall=2 * rank.wall),))
    parts = [number for number in numbers_of(twice) if number.name == "part"]
    assert len({number.labels for number in parts}) == len(parts)
    assert sum(number.value for number in parts) == pytest.approx(2)


def test_lines_of_json_hold_all_that_is_displayed(view: LiveView) -> None:
    lines: list[str] = []
    JsonLines(lines.append).show(view)
    (line,) = lines
    found = json.loads(line)
    assert line.endswith("\n")
    assert found["ranks"][0]["step"]["value"] == 20 * MS
    assert found["ranks"][0]["host"] == HOST
    assert found["epoch_seconds"] > 1.7e9


@pytest.mark.parametrize(("kind", "module"), [("prometheus", "prometheus_client"), ("otlp", "opentelemetry")])
def test_without_the_library_one_sentence_says_what_helps(
    kind: str, module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [each for each in sys.modules if each.split(".")[0] == module]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(UsageError, match=rf"pip install 'steptime\[{kind}\]'"):
        export.exporter(kind, print, every=1.0, address="127.0.0.1", port=0)


def test_a_job_that_has_ended_leaves_its_last_numbers(tmp_path: Path) -> None:
    built = JournalBuilder()
    for _ in range(4):
        built.next(MS).forward(MS).backward(MS).step(MS)
    folder = built.write(tmp_path / "r")
    manifest = folder / "manifest.json"
    manifest.write_text(manifest.read_text().replace("}", ', "ended_epoch_ns": 1700000009000000000}'))
    words = steptime_words("watch", str(folder), "--export", "jsonl")
    found = subprocess.run(words, capture_output=True, text=True, check=True)
    assert [json.loads(line)["state"] for line in found.stdout.splitlines()] == ["ended"]


def everything(view: LiveView) -> LiveView:
    """All that can be known is."""
    assert view.machine is not None
    device = replace(view.machine.devices[0], memory_bytes=1, clock_mhz=1, power_watts=1.0)
    machine = replace(view.machine, devices=(device,))
    return replace(view, samples=(machine,), ranks=(replace(view.ranks[0], queue=Queue(1.0, 2), bytes=1),))


def test_the_dashboard_asks_for_what_is_exported_by_labels_that_there_are(view: LiveView) -> None:
    labels: dict[str, set[str]] = {}
    for number in numbers_of(everything(view)):
        name = "_".join(filter(None, ("steptime", number.name, number.unit, "total" if number.total else "")))
        labels[name] = {"instance", *(label for label, _ in number.labels)}
    asked = [target["expr"] for panel in DASHBOARD["panels"] for target in panel.get("targets", ())]
    asked += [variable["definition"] for variable in DASHBOARD["templating"]["list"] if variable["type"] == "query"]
    found = [(name, set(re.findall(r"(\w+)=~", chosen)))
             for each in asked for name, chosen in re.findall(r"(steptime_\w+)(?:\{([^}]*)\})?", each)]  # fmt: skip
    assert {name for name, _ in found} == set(labels), "each is shown, and no other asked for"
    assert [(name, chosen) for name, chosen in found if not chosen <= labels[name]] == []


def test_the_dashboard_has_what_grafana_wants_of_one() -> None:
    panels, variables = DASHBOARD["panels"], {each["name"] for each in DASHBOARD["templating"]["list"]}
    assert {"title", "uid", "schemaVersion", "time"} <= set(DASHBOARD)
    assert "id" not in DASHBOARD, "else an import replaces whatever dashboard has that number"
    assert len({panel["id"] for panel in panels}) == len(panels)
    assert set(re.findall(r"\$\{?(\w+)", json.dumps(DASHBOARD))) - {"__all", "__rate_interval"} == variables
    for panel in panels:
        assert panel["type"] in ("row", "stat", "timeseries")
        if panel["type"] != "row":
            assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
            assert len({target["refId"] for target in panel["targets"]}) == len(panel["targets"])
    for one, other in itertools.combinations([panel["gridPos"] for panel in panels], 2):
        assert one["x"] + one["w"] <= 24
        apart = [one[low] + one[size] <= other[low] or other[low] + other[size] <= one[low]
                 for low, size in (("x", "w"), ("y", "h"))]  # fmt: skip
        assert any(apart), "no panel lies upon another"

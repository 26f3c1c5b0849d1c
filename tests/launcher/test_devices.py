"""Which devices are the job's, and what is said of them: a job on one of eight, next to strangers."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from journals import MS, JournalBuilder
from launcher.eight_devices import MIB, MIG, EightDevices, uuid_of

from steptime.advice.assemble import assemble
from steptime.advice.engine import examine
from steptime.analysis.layout import lay_out_whole
from steptime.launcher.devices import Devices, ReportedDevices, free_bytes
from steptime.launcher.launch import launch
from steptime.launcher.outcome import ProbeOptions
from steptime.launcher.telemetry import NAME, Telemetry
from steptime.probe.recorder import Recorder
from steptime.recording.load import look_into
from steptime.recording.recording import DeviceSample, TelemetrySample
from steptime.trials.execute import load_of

OWN = 3
HEAT = 0x40


@pytest.fixture
def nvml(monkeypatch: pytest.MonkeyPatch) -> EightDevices:
    """Device 3 is the job's, at work and well; of the strangers' some are throttled, some full, some at a low clock."""
    fake = EightDevices()
    for device in fake.devices:
        device.gpu, device.clock, device.reasons, device.used = 100, 900, HEAT, device.total - MIB
        device.users = (70_000 + device.number,)
    fake.devices[5].gpu, fake.devices[5].clock, fake.devices[5].used, fake.devices[5].users = 0, 345, 0, ()
    own = fake.devices[OWN]
    own.gpu, own.clock, own.reasons, own.used, own.users = 97, 1980, 0, 60_000 * MIB, (os.getpid(),)
    monkeypatch.setitem(sys.modules, "pynvml", fake)
    return fake


def notify(recording: Path, *numbers: int, process: int = 1) -> None:
    """As the probe of a process tells its devices."""
    folder = recording / f"process-{process}"
    folder.mkdir(parents=True, exist_ok=True)
    recorder = Recorder(lambda reason: pytest.fail(reason))
    recorder.open(str(folder))
    for place, number in enumerate(numbers):
        recorder.fact("device", identity=place, uuid=uuid_of(number))


def samples_in(recording: Path) -> list[TelemetrySample]:
    (recording / "manifest.json").write_text(json.dumps({"format_version": 1, "command": []}), encoding="utf-8")
    lines = (recording / NAME).read_bytes().splitlines()
    return [msgspec.json.decode(line, type=TelemetrySample) for line in lines]


def test_a_job_on_one_of_eight_devices_is_reported_of_that_one_alone(tmp_path: Path, nvml: EightDevices) -> None:
    telemetry = Telemetry(tmp_path, os.getpid())
    telemetry.look()
    assert (nvml.started, nvml.looked_at) == (0, set()), "nobody has told of a device yet: the driver is let alone"
    notify(tmp_path, OWN)
    telemetry.look()
    before, after = samples_in(tmp_path)
    assert before.devices == ()
    assert after.devices == (
        DeviceSample(
            uuid=f"GPU-{uuid_of(OWN)}", index=OWN, utilization=97.0, memory_bytes=60_000 * MIB, clock_mhz=1980,
            max_clock_mhz=1980, throttle_reasons=0, other_processes=0, memory_total_bytes=143_771 * MIB,
            power_watts=97.562, power_limit_watts=700.0, link_width=16, link_max_width=16, link_generation=5,
            link_max_generation=5,
        ),
    )  # fmt: skip
    assert after.devices[0].name == "GPU 3 (GPU-385e383e)"
    assert nvml.looked_at == {OWN}


def test_a_trial_counts_what_happens_on_its_own_device(tmp_path: Path, nvml: EightDevices) -> None:
    notify(tmp_path, OWN)
    telemetry = Telemetry(tmp_path, os.getpid())
    telemetry.look()
    load = load_of(samples_in(tmp_path))
    assert (load.device_throttled, load.other_device_users) == (False, False)
    nvml.devices[OWN].reasons, nvml.devices[OWN].users = HEAT, (os.getpid(), 70_003)
    telemetry.look()
    load = load_of(samples_in(tmp_path))
    assert (load.device_throttled, load.other_device_users) == (True, True)


def test_ranks_on_one_host_are_a_union_each_by_itself(tmp_path: Path, nvml: EightDevices) -> None:
    notify(tmp_path, 2, process=11)
    notify(tmp_path, OWN, 2, process=12)
    telemetry = Telemetry(tmp_path, os.getpid())
    telemetry.look()
    (sample,) = samples_in(tmp_path)
    assert sorted((each.index, each.clock_mhz, each.other_processes) for each in sample.devices) == [
        (2, 900, None), (OWN, 1980, 0),
    ]  # fmt: skip


def test_the_loop_alongside_a_job_looks_at_its_device(tmp_path: Path, nvml: EightDevices) -> None:
    """`steptime run` from the command to the end of the job, which ends when telemetry knows its device."""
    recording = tmp_path / "recording"
    code = (
        "import os, time, sys\n"
        "from pathlib import Path\n"
        "from steptime.journal import Journal\n"
        "from steptime.probe.recorder import append_facts\n"
        f"recording = Path({str(recording)!r})\n"
        "folder = recording / f'process-{os.getpid()}'\n"
        "folder.mkdir()\n"
        f"append_facts(str(folder / 'facts.jsonl'), [('device', {{'identity': 0, 'uuid': {uuid_of(OWN)!r}}})])\n"
        "while b'GPU-385e383e' not in (recording / 'telemetry.jsonl').read_bytes() "
        "if (recording / 'telemetry.jsonl').exists() else True:\n"
        "    time.sleep(0.05)\n"
    )
    assert launch([sys.executable, "-c", code], recording, ProbeOptions()).status == 0
    reported = [each for sample in look_into(recording).telemetry for each in sample.devices]
    assert {(each.index, each.clock_mhz, each.other_processes) for each in reported} == {(OWN, 1980, None)}
    assert nvml.looked_at == {OWN}


def test_findings_are_of_the_processs_own_devices_by_name(tmp_path: Path, nvml: EightDevices) -> None:
    """Device 3 is well; then it is hot, and next to it device 4, which is the job's too, sits in a narrow slot."""
    job = JournalBuilder()
    job.fact("device", identity=0, uuid=uuid_of(OWN)).fact("device", identity=1, uuid=uuid_of(4))
    for _ in range(40):
        job.next(10 * MS).forward(40 * MS).backward(40 * MS).step(10 * MS)
    process = job.process(tmp_path / "job")
    start = int(lay_out_whole(process).timeline.steps.start[0])
    devices = Devices()
    devices.add(uuid_of(number) for number in (OWN, 4, 6))

    def examined() -> dict[str, str]:
        rows = devices.look(frozenset({os.getpid()}))
        look = msgspec.convert(
            {"monotonic_ns": 0, "job_cpu": 1.0, "other_cpu": 0.0, "resident_bytes": 1, "devices": rows},
            TelemetrySample,
        )
        telemetry = [replace(look, monotonic_ns=start + (number + 1) * 800 * MS) for number in range(4)]
        case = assemble(process, lay_out_whole(process), telemetry=telemetry)
        return {finding.code: finding.summary for finding in examine(case).findings}

    nvml.devices[4].clock, nvml.devices[4].reasons = 1980, 0
    assert not {"ST817", "ST818", "ST819"} & set(examined()), "device 6 is hot, and a stranger's"
    nvml.devices[OWN].clock, nvml.devices[OWN].reasons, nvml.devices[4].link_width = 990, 0x4, 4
    found = examined()
    assert found["ST818"].startswith("GPU 3 (GPU-385e383e) is at its power limit (98 of 700 W) in 100 % of the samples")
    assert found["ST819"].startswith("GPU 4 (GPU-485e383e) has a link of 4 lanes of generation 5, of 16")
    nvml.devices[4].clock, nvml.devices[4].reasons = 1200, 0x4
    assert examined()["ST818"].endswith("990 of 1980 MHz; the same holds for GPU 4 (GPU-485e383e)")


def test_a_figure_that_a_device_does_not_give_loses_no_other(nvml: EightDevices) -> None:
    nvml.devices[OWN].unsupported = frozenset({"MaxPcieLinkGeneration", "UtilizationRates", "ComputeRunningProcesses"})
    devices = Devices()
    devices.add([uuid_of(OWN), uuid_of(2)])
    own, other = devices.look(frozenset({os.getpid()}))
    assert (own["power_watts"], own["clock_mhz"], own["link_width"]) == (97.562, 1980, 16)
    assert not {"utilization", "link_max_generation", "other_processes"} & set(own)
    assert (other["utilization"], other["link_max_generation"]) == (100, 5)


def test_an_instance_of_a_shared_device_tells_its_memory(nvml: EightDevices) -> None:
    nvml.devices[OWN].kind, nvml.devices[OWN].unsupported = "MIG-", MIG
    nvml.devices[OWN].total = 18_000 * MIB
    nvml.devices[OWN].used = 6_000 * MIB
    devices = Devices()
    devices.add([uuid_of(OWN)])
    (row,) = devices.look(frozenset({os.getpid()}))
    assert row == {
        "uuid": f"MIG-{uuid_of(OWN)}", "memory_bytes": 6_000 * MIB, "memory_total_bytes": 18_000 * MIB,
        "other_processes": 0,
    }  # fmt: skip
    assert msgspec.convert(row, DeviceSample).name == "GPU (MIG-385e383e)"
    assert free_bytes([uuid_of(OWN)]) == 12_000 * MIB


def test_a_device_that_is_shared_in_instances_is_not_taken_for_the_jobs(nvml: EightDevices) -> None:
    """Where CUDA tells the UUID of the whole device, nobody knows which instance is the job's."""
    nvml.devices[OWN].shared = True
    devices = Devices()
    devices.add([uuid_of(OWN), uuid_of(2)])
    assert [row["index"] for row in devices.look(frozenset({os.getpid()}))] == [2]
    assert free_bytes([uuid_of(OWN)]) == 0
    nvml.devices[OWN].unsupported = frozenset({"MigMode"})  # as boards without MIG say
    assert free_bytes([uuid_of(OWN)]) > 0


def test_turns_have_room_where_the_jobs_own_devices_have(nvml: EightDevices) -> None:
    assert free_bytes([uuid_of(OWN)]) == (143_771 - 60_000) * MIB
    assert free_bytes([uuid_of(OWN), uuid_of(2)]) == MIB
    assert free_bytes([]) == 0
    assert free_bytes([uuid_of(OWN), uuid_of(9)]) == 0, "one of another machine"
    nvml.devices[OWN].unsupported = frozenset({"MemoryInfo"})
    assert free_bytes([uuid_of(OWN)]) == 0


def test_strangers_are_not_counted_where_the_driver_numbers_processes_otherwise(nvml: EightDevices) -> None:
    devices = Devices()
    devices.add([uuid_of(OWN)])
    assert devices.look(frozenset({os.getpid()}))[0]["other_processes"] == 0
    assert "other_processes" not in devices.look(frozenset({1}))[0]
    nvml.devices[OWN].users = ()
    assert devices.look(frozenset({1}))[0]["other_processes"] == 0


def test_what_is_torn_or_strange_among_the_facts_is_no_device(tmp_path: Path) -> None:
    reported = ReportedDevices(tmp_path)
    assert reported.new() == set()
    (tmp_path / "process-7").mkdir()
    file = tmp_path / "process-7" / "facts.jsonl"
    line = json.dumps({"fact": "device", "identity": 0, "uuid": uuid_of(1)}).encode()
    file.write_bytes(b'{"fact": "device", "uuid": 7}\n{"fact": "device"\n{"fact": "note", "text": "x"}\n' + line[:20])
    assert reported.new() == set()
    file.write_bytes(file.read_bytes() + line[20:] + b"\n")
    assert reported.new() == {uuid_of(1)}
    assert reported.new() == set(), "each is told once"


@pytest.mark.parametrize("driver", ["none", "broken"])
def test_a_machine_without_a_driver_has_no_devices(monkeypatch: pytest.MonkeyPatch, driver: str) -> None:
    fake = EightDevices()

    def broken() -> None:
        raise fake.NVMLError(fake.NVML_ERROR_DRIVER_NOT_LOADED)

    monkeypatch.setattr(fake, "nvmlInit", broken)
    monkeypatch.setitem(sys.modules, "pynvml", None if driver == "none" else fake)
    devices = Devices()
    devices.add([uuid_of(OWN)])
    assert devices.look(frozenset()) == []


def test_recordings_with_all_devices_in_one_sample_stay_readable() -> None:
    telemetry = look_into(Path(__file__).parents[1] / "data" / "gpu" / "nanogpt").telemetry
    (merged,) = {each.name for sample in telemetry for each in sample.devices}
    assert merged == "GPU"
    assert all(each.of(()) for sample in telemetry for each in sample.devices), "whose it is nobody knows: it counts"
    assert max(each.utilization or 0 for sample in telemetry for each in sample.devices) == 77.0
    assert {each.link_width for sample in telemetry for each in sample.devices} == {16}

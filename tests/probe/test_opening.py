"""Two threads that show the first sign of training at once, and epochs that may be the last."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from steptime.probe import (  # noqa: E402
    identity,
    schedule,
    session as session_module,
    sites,
)
from steptime.probe.schedule import steps_to_next  # noqa: E402
from steptime.probe.session import Session  # noqa: E402


def test_two_threads_that_start_to_train_at_once_have_one_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = Session({"recording": str(tmp_path)}, schedule.run)
    make_folder = identity.make_folder

    def slowly(recording: str, pid: int) -> str:
        other = threading.Thread(target=session._open)  # comes while the folder is being made
        other.start()
        other.join()
        return make_folder(recording, pid)

    monkeypatch.setattr(identity, "make_folder", slowly)
    session._open()
    session.finish()
    assert len(list(tmp_path.glob("process-*"))) == 1


@pytest.mark.parametrize(("taken", "wanted", "delay"), [(2, 6, 0), (5, 6, 6), (10, 1, 1), (0, 6, 0)])
def test_a_window_waits_for_the_next_epoch_where_this_one_is_too_short(taken: int, wanted: int, delay: int) -> None:
    iterator = iter(torch.utils.data.DataLoader(torch.zeros(10, 1)))
    for _ in range(taken):
        next(iterator)
    assert steps_to_next([iterator], taken, taken, wanted) == delay


def test_a_step_of_several_batches_needs_as_many() -> None:
    iterator = iter(torch.utils.data.DataLoader(torch.zeros(10, 1)))
    next(iterator)
    assert [steps_to_next([iterator], backwards, 2, 3) for backwards in (6, 7)] == [0, 10]


def test_a_loader_without_a_length_delays_nothing() -> None:
    class Stream:
        _num_yielded = 1

        def __len__(self) -> int:
            raise TypeError("a stream has no length")

    assert steps_to_next([Stream(), object()], 1, 1, 5) == 0


def test_optimizers_of_other_types_in_one_place_are_all_known(tmp_path: Path) -> None:
    """A study that draws the optimizer: what is advised for one of the types may fail for another."""
    sites.install()
    session = Session({"recording": str(tmp_path)}, schedule.run)
    for made, name in enumerate(("SGD", "SGD", "RMSprop", "SGD")):
        optimizer = getattr(torch.optim, name)([torch.nn.Parameter(torch.ones(2))], lr=0.1)
        session_module._describe(session, optimizer, made)
        del optimizer
    session.finish()
    (path,) = tmp_path.glob("process-*/facts.jsonl")
    facts = [each for each in map(json.loads, path.read_text().splitlines()) if each["fact"] == "optimizer"]
    assert [(each["type"], each["made"]) for each in facts] == [
        ("SGD", 1), ("SGD", 2), ("SGD or RMSprop", 3), ("SGD or RMSprop", 4),
    ]  # fmt: skip
    assert len({each["identity"] for each in facts}) == 1

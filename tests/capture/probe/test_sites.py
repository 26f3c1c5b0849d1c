"""Where loaders and optimisers were built, without a trace in what was built."""

from __future__ import annotations

import gc
import pickle
import sys
from collections.abc import Iterator

import pytest

torch = pytest.importorskip("torch")

from steptime.capture.probe import sites  # noqa: E402


@pytest.fixture(autouse=True)
def watch() -> Iterator[sites.SiteWatch]:
    placed = sites.install()
    yield placed
    placed.remove()


def test_the_line_that_builds_an_optimiser_or_a_loader_is_known() -> None:
    optimizer = torch.optim.AdamW([torch.zeros(1, requires_grad=True)])
    line = sys._getframe().f_lineno - 1
    loader = torch.utils.data.DataLoader(torch.zeros(4, 1))
    of_optimizer, of_loader = sites.site_of(optimizer), sites.site_of(loader)
    assert of_optimizer is not None
    assert of_loader is not None
    assert (of_optimizer["file"], of_optimizer["line"]) == (__file__, line)
    assert of_optimizer["text"].startswith("optimizer = torch.optim.AdamW(")
    assert of_loader["line"] == line + 2


def test_a_subclass_is_known_by_the_line_that_builds_it() -> None:
    class Mine(torch.utils.data.DataLoader):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            super().__init__(torch.zeros(4, 1))

    site = sites.site_of(Mine())
    assert site is not None
    assert site["function"] == "__init__"  # the user's innermost line


def test_what_was_built_is_held_weakly() -> None:
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1)
    key = id(optimizer)
    assert key in sites._built
    del optimizer
    gc.collect()
    assert key not in sites._built


def test_what_was_built_pickles_as_without_us(watch: sites.SiteWatch) -> None:
    def made() -> bytes:
        torch.manual_seed(0)
        return pickle.dumps(torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1))

    with_us = made()
    watch.remove()
    assert made() == with_us


def test_the_call_reaches_torchs_own_log_with_all_arguments(watch: sites.SiteWatch) -> None:
    assert torch._C._log_api_usage_once("python.nn_module") is None
    with pytest.raises(TypeError):
        torch._C._log_api_usage_once()
    original = watch._log
    watch.remove()
    assert torch._C._log_api_usage_once is original


def test_whose_code_a_file_is() -> None:
    import json

    assert sites.whose(__file__) == sites.USER
    assert sites.whose(json.__file__) == sites.INNER
    assert sites.whose(torch.__file__) == sites.INNER
    assert sites.whose(sites.__file__) == sites.INNER
    assert sites.whose(pytest.__file__) == sites.LIBRARY
    assert sites.whose("<string>") == sites.INNER


def test_a_script_without_a_file_is_the_users() -> None:
    found: dict[str, object] = {"__name__": "__main__", "sys": sys, "user_frame": sites.user_frame}
    exec("place = user_frame(sys._getframe())", found)
    place = found["place"]
    assert isinstance(place, tuple)
    assert place[2] == "<module>"

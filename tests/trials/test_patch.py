"""Edits of the user's source: exact where they are made, none where that is not certain."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from steptime.errors import OutputError
from steptime.quantities import SourceLine
from steptime.remedies.remedy import CallEdit, EnvironmentEdit, Snippet, StatementEdit
from steptime.trials.patch import apply_edit, make_patch
from steptime.trials.write import write_patch

TWO_WORKERS = (("num_workers", "2"), ("persistent_workers", "True"))


def loader(line: int, keywords: tuple[tuple[str, str], ...] = TWO_WORKERS) -> CallEdit:
    return CallEdit("DataLoader", keywords, SourceLine("train.py", line))


@pytest.mark.parametrize(
    ("source", "wanted"),
    [
        ("x = DataLoader(d)\n", "x = DataLoader(d, num_workers=2, persistent_workers=True)\n"),
        (
            "x = torch.utils.data.DataLoader(d, 32, num_workers = args.workers)\n",
            "x = torch.utils.data.DataLoader(d, 32, num_workers = 2, persistent_workers=True)\n",
        ),
        (
            "x = DataLoader(\n    d,  # data\n    shuffle=True,  # why\n)  # end\n",
            "x = DataLoader(\n    d,  # data\n    shuffle=True,  # why\n    num_workers=2,\n"
            "    persistent_workers=True,\n)  # end\n",
        ),
        (
            "x = DataLoader(\n  d,\n  shuffle=True\n)\n",
            "x = DataLoader(\n  d,\n  shuffle=True,\n  num_workers=2,\n  persistent_workers=True\n)\n",
        ),
    ],
)
def test_keywords_are_set_in_the_calls_own_style(source: str, wanted: str) -> None:
    assert apply_edit(loader(1), source) == wanted


@pytest.mark.parametrize(
    "source",
    [
        "x = DataLoader(**options)\n",
        "x = DataLoader(d, 32, True, None, None, 4)\n",
        "x = DL(d)\n",
        "x = DataLoader(d), DataLoader(e)\n",
        "y = 1\nx = DataLoader(d)\n",
        "x = DataLoader(d\n",
        "x = DataLoader(\n    d  # data\n)\n",
    ],
)
def test_what_is_not_certain_is_not_written(source: str) -> None:
    assert apply_edit(loader(1), source) is None


def test_options_that_are_taken_back_are_not_added() -> None:
    without = (("num_workers", "0"), ("persistent_workers", "False"))
    source = "x = DataLoader(d, num_workers=4)\n"
    assert apply_edit(loader(1, without), source) == "x = DataLoader(d, num_workers=0)\n"


def test_a_statement_comes_behind_the_imports() -> None:
    edit = StatementEdit('torch.set_float32_matmul_precision("high")', "torch")
    source = '"""Trains."""\nimport os\nimport torch\n\nmodel = 1\n'
    wanted = f'"""Trains."""\nimport os\nimport torch\n\n{edit.statement}\n\nmodel = 1\n'
    assert apply_edit(edit, source) == wanted
    assert apply_edit(edit, wanted) is None
    assert apply_edit(edit, "import torch as t\n") is None
    assert apply_edit(edit, "import torchvision\n") is None


def test_a_patch_holds_what_is_written_and_tells_the_rest(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_bytes(b"x = DataLoader(d)\r\n")
    edits = (loader(1), EnvironmentEdit((("OMP_NUM_THREADS", "1"),)), Snippet("model = torch.compile(model)"))
    patch = make_patch(edits, tmp_path, None)
    assert patch.files[0][2] == "x = DataLoader(d, num_workers=2, persistent_workers=True)\r\n"
    assert patch.environment == (("OMP_NUM_THREADS", "1"),)
    assert patch.snippets == ("model = torch.compile(model)",)


def test_an_option_of_the_command_line_that_a_patch_overrules_is_named(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("x = DataLoader(d, num_workers=args.workers, persistent_workers=False)\n")
    patch = make_patch((loader(1),), tmp_path, None)
    assert patch.replaced == ("train.py: num_workers=args.workers is 2 now",)
    (tmp_path / "train.py").write_text("x = DataLoader(d, num_workers=4)\n")
    assert make_patch((loader(1),), tmp_path, None).replaced == ()


def test_a_file_outside_of_the_jobs_folder_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "job").mkdir()
    library = tmp_path / "library.py"
    library.write_text("x = DataLoader(d)\n")
    edit = CallEdit("DataLoader", TWO_WORKERS, SourceLine(str(library), 1))
    patch = make_patch((edit,), tmp_path / "job", None)
    assert patch.files == ()
    assert "library.py:1" in patch.snippets[0]


def test_an_installed_library_in_the_jobs_folder_is_left_alone(tmp_path: Path) -> None:
    inside = tmp_path / "venv" / "lib" / "site-packages" / "trainer.py"
    inside.parent.mkdir(parents=True)
    inside.write_text("x = DataLoader(d)\n")
    assert make_patch((CallEdit("DataLoader", TWO_WORKERS, SourceLine(str(inside), 1)),), tmp_path, None).files == ()


def git(folder: Path, *words: str) -> None:
    identity = ("-c", "user.name=A", "-c", "user.email=a@example.org")
    subprocess.run(["git", *identity, *words], cwd=folder, check=True, capture_output=True)


def test_the_diff_applies_with_git_and_writing_refuses_a_dirty_file(tmp_path: Path) -> None:
    train = tmp_path / "train.py"
    train.write_text("import torch\nx = DataLoader(d)")
    patch = make_patch((loader(2),), tmp_path, None)
    with pytest.raises(OutputError, match="patch-dirty"):
        write_patch(patch, tmp_path)
    git(tmp_path, "init", "-q")
    with pytest.raises(OutputError, match="patch-dirty"):
        write_patch(patch, tmp_path)
    git(tmp_path, "add", "train.py")
    git(tmp_path, "commit", "-q", "-m", "first")
    (tmp_path / "patch.diff").write_text(patch.diff)
    git(tmp_path, "apply", "patch.diff")
    assert train.read_text() == patch.files[0][2]
    git(tmp_path, "checkout", "train.py")
    assert write_patch(patch, tmp_path) == (train,)
    assert train.read_text() == patch.files[0][2]
    with pytest.raises(OutputError, match="patch-outdated"):
        write_patch(patch, tmp_path)
    train.unlink()
    with pytest.raises(OutputError, match="patch-outdated"):
        write_patch(patch, tmp_path)


def test_a_link_that_git_knows_is_not_written_through(tmp_path: Path) -> None:
    (tmp_path / "elsewhere.py").write_text("import torch\nx = DataLoader(d)")
    repository = tmp_path / "repository"
    repository.mkdir()
    (repository / "train.py").symlink_to(tmp_path / "elsewhere.py")
    git(repository, "init", "-q")
    git(repository, "add", "train.py")
    git(repository, "commit", "-q", "-m", "first")
    with pytest.raises(OutputError, match="patch-dirty"):
        write_patch(make_patch((loader(2),), repository, None), repository)
    assert (tmp_path / "elsewhere.py").read_text() == "import torch\nx = DataLoader(d)"

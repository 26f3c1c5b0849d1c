"""Edits of the user's source: exact where they are made, none where that is not certain."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from steptime.advice.fix import CallEdit, EnvironmentEdit, JointEdit, Snippet, StatementEdit
from steptime.errors import OutputError
from steptime.quantities import SourceLine
from steptime.trials import containment
from steptime.trials.containment import Layer, Workspace, contained
from steptime.trials.edits import apply_edit
from steptime.trials.patch import make_patch, unwritten, write_patch

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
        "x = DataLoader(*options)\n",
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


PARSED = "parser.add_argument('-j', '--workers', type=int, default=0)\nx = DataLoader(d, num_workers=args.workers)\n"


def test_an_option_of_the_command_line_keeps_its_effect(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(PARSED)
    patch = make_patch((loader(2),), tmp_path, None, ("python", "train.py", "--epochs=3"))
    assert patch.files[0][2] == (
        "parser.add_argument('-j', '--workers', type=int, default=2)\n"
        "x = DataLoader(d, num_workers=args.workers, persistent_workers=args.workers > 0)\n"
    )
    assert patch.replaced == ()


@pytest.mark.parametrize(
    ("source", "command"),
    [
        (PARSED, ("python", "train.py", "-j", "0")),
        (PARSED, ("python", "train.py", "--workers=0")),
        (PARSED + "print(args.workers)\n", ()),
        (PARSED.replace("default=0", "default=CPUS"), ()),
        (PARSED.replace("default=0", "dest='w', default=0"), ()),
        (PARSED.replace("--workers", "--loaders"), ()),
    ],
)
def test_an_option_whose_default_is_not_all_is_replaced(tmp_path: Path, source: str, command: tuple[str, ...]) -> None:
    (tmp_path / "train.py").write_text(source)
    patch = make_patch((loader(2),), tmp_path, None, command)
    assert "x = DataLoader(d, num_workers=2, persistent_workers=True)" in patch.files[0][2]
    assert patch.replaced == ("train.py: num_workers=args.workers is 2 now",)


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
        write_patch(patch)
    git(tmp_path, "init", "-q")
    with pytest.raises(OutputError, match="patch-dirty"):
        write_patch(patch)
    git(tmp_path, "add", "train.py")
    git(tmp_path, "commit", "-q", "-m", "first")
    (tmp_path / "patch.diff").write_text(patch.diff)
    git(tmp_path, "apply", "patch.diff")
    assert train.read_text() == patch.files[0][2]
    git(tmp_path, "checkout", "train.py")
    assert write_patch(patch) == (train,)
    assert train.read_text() == patch.files[0][2]
    with pytest.raises(OutputError, match="patch-outdated"):
        write_patch(patch)
    train.unlink()
    with pytest.raises(OutputError, match="patch-outdated"):
        write_patch(patch)


def run_script(folder: Path, script: Path) -> str:
    return subprocess.run([sys.executable, script], cwd=folder, check=True, capture_output=True, text=True).stdout


@pytest.mark.parametrize(
    ("repository", "job", "script"),
    [
        (".", "sub", "../train.py"),
        (".", "a folder/runs", "../../train.py"),
        (".", "runs", "../the scripts/train.py"),
        (".", "sub", "train.py"),
        ("", "sub", "../train.py"),
        ("", ".", "train.py"),
    ],
)
def test_a_patch_is_run_and_applied_wherever_the_script_lies(
    tmp_path: Path, repository: str, job: str, script: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    top = tmp_path / "top"
    folder = top / job
    folder.mkdir(parents=True)
    file = Path(os.path.normpath(folder / script))
    file.parent.mkdir(exist_ok=True)
    source = "import sys\nDataLoader = dict\nprint(DataLoader(a=1))\n"
    file.write_text(source)
    if repository:
        git(top, "init", "-q")
        git(top, "add", ".")
        git(top, "commit", "-q", "-m", "first")
    statement = StatementEdit("sys.dont_write_bytecode = True", "sys")
    edits = (statement, CallEdit("DataLoader", (("workers", "2"),), SourceLine(str(file), 3)))
    patch = make_patch(edits, folder, Path(script))
    assert [path for path, _, _ in patch.files] == [Path(script)]
    assert patch.base == (top if repository else Path(os.path.commonpath([folder, file.parent])))

    for layer in (Layer.OVERLAY, Layer.LANDLOCK):
        ground = containment.Ground(layer, tmp_path / "t")
        monkeypatch.setattr(containment, "ground_of", lambda _, ground=ground: ground)
        workspace = Workspace((sys.executable, script), tmp_path / "t", folder)
        with contained(workspace, "patched", tmp_path / "recording", ((script, patch.files[0][2]),)) as (
            command,
            place,
        ):
            words = [*place.entry, *command]
            (tmp_path / "recording").mkdir(exist_ok=True)
            done = subprocess.run(words, cwd=place.directory, capture_output=True, text=True, check=False)
        assert (done.stdout, done.stderr) == ("{'a': 1, 'workers': 2}\n", "")
        ground.janitor.close()
        assert file.read_text() == source

    diff = tmp_path / "patch.diff"
    diff.write_text(patch.diff)
    subprocess.run(patch.apply_command(diff), shell=True, cwd="/", check=True, capture_output=True)
    assert file.read_text() == patch.files[0][2]
    if repository:
        git(top, "checkout", ".")
        assert write_patch(patch) == (file,)
        assert file.read_text() == patch.files[0][2]


def test_a_script_too_far_above_the_jobs_folder_is_left_to_the_user(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "b" / "c"
    folder.mkdir(parents=True)
    (tmp_path / "train.py").write_text("import torch\n")
    edit = StatementEdit("torch.set_num_threads(1)", "torch")
    patch = make_patch((edit,), folder, Path("../../../train.py"))
    assert (patch.files, patch.snippets) == ((), ("torch.set_num_threads(1)",))


def test_a_link_that_git_knows_is_not_written_through(tmp_path: Path) -> None:
    (tmp_path / "elsewhere.py").write_text("import torch\nx = DataLoader(d)")
    repository = tmp_path / "repository"
    repository.mkdir()
    (repository / "train.py").symlink_to(tmp_path / "elsewhere.py")
    git(repository, "init", "-q")
    git(repository, "add", "train.py")
    git(repository, "commit", "-q", "-m", "first")
    with pytest.raises(OutputError, match="patch-dirty"):
        write_patch(make_patch((loader(2),), repository, None))
    assert (tmp_path / "elsewhere.py").read_text() == "import torch\nx = DataLoader(d)"


def test_edits_that_belong_together_are_all_written_or_none(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("x = DataLoader(d)\ny = AdamW(p, foreach=True)\n")
    fused = CallEdit("AdamW", (("fused", "True"), ("foreach", "None")), SourceLine("train.py", 2))
    ((_, _, both),) = make_patch((JointEdit((loader(1), fused), Snippet("…")),), tmp_path, None).files
    assert both.splitlines()[1] == "y = AdamW(p, foreach=None, fused=True)"
    gone = CallEdit("SGD", (("fused", "True"),), SourceLine("train.py", 2))
    patch = make_patch((JointEdit((loader(1), gone), Snippet("fuse them")), fused), tmp_path, None)
    assert patch.snippets == ("fuse them",)
    assert patch.files[0][2] == "x = DataLoader(d)\ny = AdamW(p, foreach=None, fused=True)\n"


def test_a_patch_that_failed_by_itself_is_reported_in_words(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("x = DataLoader(d)\n")
    patch = unwritten(make_patch((loader(1),), tmp_path, None), (loader(1),))
    assert (patch.files, patch.diff) == ((), "")
    assert patch.snippets == ("train.py:1: DataLoader(…, num_workers=2, persistent_workers=True)",)

"""Changes that only a CUDA device knows: in force in the job, with the gradients that they promise."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from probe.variants import STEPS, Variant, change, run

pytest.importorskip("torch")
pytestmark = pytest.mark.gpu
STILL = replace(STEPS, dropout=False)
JOB = '''
"""Convolutions and attention on the device; prints what is in force."""
import json, os, torch
from torch import nn

torch.manual_seed(0)

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.see = nn.Sequential(nn.Conv2d(3, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 64, 3, stride=4), nn.ReLU())
        self.read, self.head = nn.Linear(64, 3 * 64), nn.Linear(64, 10)

    def forward(self, images):
        tokens = self.see(images).flatten(2).transpose(1, 2)
        query, key, value = self.read(tokens).unflatten(2, (3, 4, 16)).permute(2, 0, 3, 1, 4)
        mixed = nn.functional.scaled_dot_product_attention(query, key, value)
        return self.head(mixed.transpose(1, 2).flatten(2).mean(1))

model = Net().cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
images, labels = torch.randn(16, 3, 32, 32, device="cuda"), torch.randint(10, (16,), device="cuda")
for step in range(40):
    optimizer.zero_grad()
    output = model(images)
    loss = nn.functional.cross_entropy(output, labels)
    loss.backward()
    optimizer.step()
    seen = {
        "dtype": str(output.dtype),
        "benchmark": torch.backends.cudnn.benchmark,
        "math": torch.backends.cuda.math_sdp_enabled(),
        "precision": torch.get_float32_matmul_precision(),
        "allocator": os.environ.get("PYTORCH_CUDA_ALLOC_CONF", ""),
        "value": loss.item(),
    }
    print("SEEN " + json.dumps(seen), flush=True)
'''


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("job") / "job.py"
    path.write_text(JOB)
    return path


@pytest.fixture(scope="module")
def plain(script: Path, tmp_path_factory: pytest.TempPathFactory) -> Variant:
    return run(tmp_path_factory.mktemp("plain"), script, variant=STILL)


def gradients(variant: Variant) -> dict[str, float]:
    parity = variant.process.parity
    assert parity is not None
    return {name: norm for name, norm in parity.gradients[0] if norm is not None}


def agree(variant: Variant, plain: Variant, tolerance: float) -> None:
    """Gradient norms of the first step, parameter by parameter."""
    expected = gradients(plain)
    assert gradients(variant).keys() == expected.keys()
    for name, norm in gradients(variant).items():
        assert norm == pytest.approx(expected[name], rel=tolerance, abs=1e-6), name


def test_float16_scales_its_loss(tmp_path: Path, script: Path, plain: Variant) -> None:
    variant = run(tmp_path, script, change("autocast", dtype="float16", device="cuda"), variant=STILL)
    assert variant.seen[-1]["dtype"] == "torch.float16"
    assert variant.change("autocast").exercised, variant.change("autocast")
    agree(variant, plain, 0.3)


def test_the_model_is_launched_as_graphs(tmp_path: Path, script: Path, plain: Variant) -> None:
    variant = run(tmp_path, script, change("compile", mode="reduce-overhead"), variant=STILL)
    assert variant.status == 0, variant.output[-2000:]
    assert variant.change("compile").exercised, variant.change("compile")
    agree(variant, plain, 0.01)


def test_kernels_are_chosen(tmp_path: Path, script: Path, plain: Variant) -> None:
    variant = run(
        tmp_path,
        script,
        change("cudnn-benchmark"),
        change("sdpa-backend", backend="efficient"),
        change("environment", PYTORCH_CUDA_ALLOC_CONF="expandable_segments:True"),
        variant=STILL,
    )
    assert (plain.seen[-1]["benchmark"], plain.seen[-1]["math"]) == (False, True)
    assert (variant.seen[-1]["benchmark"], variant.seen[-1]["math"]) == (True, False)
    assert variant.seen[-1]["allocator"] == "expandable_segments:True"
    assert all(each.exercised for each in variant.process.changes), variant.process.changes
    agree(variant, plain, 0.01)


def test_single_precision_products_are_rounded(tmp_path: Path, script: Path, plain: Variant) -> None:
    variant = run(tmp_path, script, change("matmul-precision", precision="high"), variant=STILL)
    assert (plain.seen[-1]["precision"], variant.seen[-1]["precision"]) == ("highest", "high")
    agree(variant, plain, 0.05)


def test_what_is_not_installed_is_reported(tmp_path: Path, script: Path) -> None:
    variant = run(tmp_path, script, change("optimizer-8bit", package="no-such-package"), variant=STILL)
    assert not variant.change("optimizer-8bit").exercised
    assert "no-such-package" in variant.change("optimizer-8bit").detail

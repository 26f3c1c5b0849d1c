"""What a line does is told by what it was seen to call."""

from __future__ import annotations

import pytest

from steptime.advice.line_evidence import LineKind, calls_function, converts_lists, line_kind


@pytest.mark.parametrize(
    ("calls", "kind"),
    [
        ("torch.nn.modules.module.Module.state_dict torch.serialization.save", LineKind.CHECKPOINT),
        ("accelerate.accelerator.Accelerator.save_state", LineKind.CHECKPOINT),
        ("torch.Tensor.item builtins.print", LineKind.LOGGING),
        ("logging.getLogger logging.Logger.info", LineKind.LOGGING),
        ("wandb.sdk.wandb_run.Run.log", LineKind.LOGGING),
        ("torch.utils.tensorboard.writer.SummaryWriter.add_scalar", LineKind.LOGGING),
        ("tqdm.std.tqdm.set_postfix", LineKind.LOGGING),
        ("_io.TextIOWrapper.write", LineKind.LOGGING),
        ("lightning.pytorch.core.module.LightningModule.log", LineKind.LOGGING),
        ("accelerate.accelerator.Accelerator.log", LineKind.LOGGING),
        ("train.RunLogger.log", LineKind.LOGGING),
        ("torch.Tensor.log", LineKind.OTHER),
        ("math.log numpy.log", LineKind.OTHER),
        ("gc.collect", LineKind.COLLECT),
        ("torch.nn.utils.clip_grad.clip_grad_norm_", LineKind.GRADIENTS),
        ("accelerate.accelerator.Accelerator.clip_grad_norm_", LineKind.GRADIENTS),
        ("torch.tensor", LineKind.ARRAYS),
        ("torch.Tensor.argmax torch.Tensor.item", LineKind.METRICS),
        ("torchmetrics.metric.Metric.update", LineKind.METRICS),
        ("sklearn.metrics._ranking.roc_auc_score", LineKind.METRICS),
        ("train.accuracy", LineKind.METRICS),
        ("train.symmetric_kl", LineKind.OTHER),
        ("torch_geometric.utils._to_dense_batch.to_dense_batch", LineKind.OTHER),
        ("model.Network.forward", LineKind.OTHER),
        ("model.catalogue pickle.loads json.dumps", LineKind.OTHER),
        ("", LineKind.OTHER),
    ],
)
def test_a_line_has_the_first_kind_that_fits(calls: str, kind: LineKind) -> None:
    assert line_kind(calls.split()) is kind


@pytest.mark.parametrize(
    ("calls", "slow"),
    [("torch.tensor", True), ("numpy._core.shape_base.stack torch.tensor", False), ("torch.from_numpy", False),
     ("torch.tensor builtins.print", False)],
)  # fmt: skip
def test_one_numpy_array_is_no_list(calls: str, slow: bool) -> None:
    assert converts_lists(calls.split()) is slow


def test_a_function_is_known_by_the_last_of_its_names() -> None:
    assert calls_function(("torch.optim.optimizer.Optimizer.zero_grad",), "zero_grad")
    assert not calls_function(("train.zero_gradients",), "zero_grad")

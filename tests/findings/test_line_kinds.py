"""What a line does is told by its text."""

from __future__ import annotations

import pytest

from steptime.advice.line_evidence import LineKind, converts_lists, line_kind


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("torch.save(model.state_dict(), path)", LineKind.CHECKPOINT),
        ("accelerator.save_state('out')", LineKind.CHECKPOINT),
        ("print(step, loss.item())", LineKind.LOGGING),
        ("logger.info('loss %s', loss.item())", LineKind.LOGGING),
        ("wandb.log({'loss': loss.item()})", LineKind.LOGGING),
        ("writer.add_scalar('loss', loss, step)", LineKind.LOGGING),
        ("bar.set_postfix(loss=loss.item())", LineKind.LOGGING),
        ("gc.collect()", LineKind.COLLECT),
        ("batch = torch.tensor([rows[i] for i in chosen])", LineKind.ARRAYS),
        ("x = torch.FloatTensor(rows)", LineKind.ARRAYS),
        ("correct += (output.argmax(1) == labels).sum().item()", LineKind.METRICS),
        ("metric.update(output, labels)", LineKind.METRICS),
        ("score = roc_auc_score(y, p)", LineKind.METRICS),
        ("output = model(images)", LineKind.OTHER),
        ("loss = catalogue(blueprint)", LineKind.OTHER),
        ("total = total + 1  # print(loss.item())", LineKind.OTHER),
        ("", LineKind.OTHER),
    ],
)
def test_a_line_has_the_first_kind_that_fits(text: str, kind: LineKind) -> None:
    assert line_kind(text) is kind


@pytest.mark.parametrize(
    ("text", "slow"),
    [
        ("batch = torch.tensor([rows[i] for i in chosen])", True),
        ("batch = torch.tensor(rows)", True),
        ("batch = torch.tensor(np.stack(rows))", False),
        ("batch = torch.from_numpy(rows)", False),
        ("print(torch.tensor(rows))", False),
    ],
)
def test_one_numpy_array_is_no_list(text: str, slow: bool) -> None:
    assert converts_lists(text) is slow

"""Which lines prepare the batch, told by names."""

from __future__ import annotations

from steptime.analysis.lines import find_preparing
from steptime.recording.recording import CodeFacts, CodeLine

Line = tuple[int, str, str]


def code(base: int, function: str, *lines: Line, loop: bool = True) -> CodeFacts:
    """Lines as (number, names bound, names read)."""
    made = tuple(CodeLine(number, "", tuple(stores.split()), tuple(loads.split())) for number, stores, loads in lines)
    return CodeFacts(base, "train.py", function, lines[0][0], loop, made)


def preparing(
    codes: tuple[CodeFacts, ...], *forwards: int, evaluating: tuple[int, ...] = (), known: str = ""
) -> set[int]:
    reported = {*forwards, *evaluating, *map(int, known.split())}
    return find_preparing(codes, set(forwards), set(evaluating), reported)


def test_a_function_in_the_arguments_of_the_training_call_prepares_when_it_runs_before_the_forward() -> None:
    loop = code(100, "main", (50, "", "self note advance draw"))
    fit = code(200, "Fit.advance", (60, "loss", "self net pair"), (61, "", "loss backward"), loop=False)
    draw = code(300, "Rows.draw", (70, "rows", "self table"), (71, "", "rows"), loop=False)
    note = code(400, "Fit.note", (80, "", "self loss"), loop=False)
    codes = (loop, fit, draw, note)
    assert find_preparing(codes, {200}, set(), {200, 201}) == set()
    assert find_preparing(codes, {200}, set(), {200, 201}, frozenset({300, 301})) == {300, 301}


def test_what_is_fetched_between_forward_and_backward() -> None:
    loop = code(
        100,
        "<module>",
        (50, "lr", "get_lr step"),
        (51, "logits loss", "model X Y"),
        (52, "X Y", "get_batch"),
        (53, "", "loss backward"),
        (54, "lossf", "loss item"),
    )
    assert preparing((loop,), 101, known="103") == {102}


def test_a_loss_that_reaches_the_next_forward_is_no_preparation() -> None:
    loop = code(1, "main", (1, "x", "source"), (2, "out hidden", "model x hidden"), (3, "hidden", "hidden detach"))
    assert preparing((loop,), 2) == {1}


def test_through_a_method_that_trains() -> None:
    fit = code(
        1,
        "Trainer.fit",
        (10, "x y", "self .loader"),
        (11, "x", "x augment"),
        (12, "loss", "self train_step x y"),
        (13, "", "self .log loss append"),
    )
    step = code(10, "Trainer.train_step", (30, "out", "self net x"), (31, "loss", "criterion out y"), loop=False)
    assert preparing((fit, step), 10, known="1") == {2}


def test_into_generators_and_functions_that_only_preparing_lines_call() -> None:
    loop = code(1, "main", (10, "x", "batches"), (11, "out", "model x"), (12, "", "show out"))
    batches = code(10, "batches", (30, "picked", "rng"), (31, "", "decode picked"), loop=False)
    decode = code(20, "decode", (40, "raw", "picked"), loop=False)
    show = code(30, "show", (50, "", "out print"), loop=False)
    assert preparing((loop, batches, decode, show), 2) == {1, 10, 11, 20}


def test_a_function_that_others_call_too_is_not_reported() -> None:
    loop = code(1, "main", (10, "x", "scale"), (11, "out", "model x"), (12, "shown", "scale out"))
    scale = code(10, "scale", (30, "y", "x"), loop=False)
    assert preparing((loop, scale), 2) == {1}


def test_evaluation_may_call_it_as_well() -> None:
    loop = code(1, "main", (10, "x", "get_batch"), (11, "out", "model x"))
    evaluate = code(5, "evaluate", (20, "x", "get_batch"), loop=False)
    made = code(10, "get_batch", (30, "y", "data"), loop=False)
    assert preparing((loop, evaluate, made), 2, evaluating=(5,)) == {1, 10}


def test_self_carries_nothing() -> None:
    loop = code(1, "main", (10, "self", "self"), (11, ".count", "self .count"), (12, "out", "self net x"))
    assert preparing((loop,), 3) == set()

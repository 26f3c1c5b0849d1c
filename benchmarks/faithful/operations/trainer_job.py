"""The Trainer of Transformers: checkpoints, the best model, unwrap_model, and copies in a callback."""

import copy
import os
import warnings

os.environ["TRANSFORMERS_VERBOSITY"] = "error"
os.environ["HF_HUB_OFFLINE"] = "1"
warnings.simplefilter("ignore")

import torch  # noqa: E402
import transformers  # noqa: E402
from accelerate.utils import extract_model_from_parallel  # noqa: E402
from training import STEPS, do, halved, loaded, notify, objects_of_the_job, pace, saved  # noqa: E402


class Rows(torch.utils.data.Dataset):
    def __init__(self, count):
        self.rows = torch.randint(0, 64, (count, 12), generator=torch.Generator().manual_seed(1))

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, number):
        return {"input_ids": self.rows[number], "labels": self.rows[number]}


class Operations(transformers.TrainerCallback):
    trainer = None

    def on_step_end(self, arguments, state, control, model=None, **named):
        step, rows = state.global_step - 1, Rows(2).rows
        do("trainer deepcopy in a callback", step, self.copied, model, rows)
        do("trainer unwrap_model", step, self.unwrapped, model, rows)
        do("trainer save of the model", step, self.stored, model, rows)
        do("trainer save_pretrained", step, self.pretrained, model, step)
        do("trainer objects of the job", step, objects_of_the_job)
        pace(step)

    def copied(self, model, rows):
        return halved(copy.deepcopy(model))(rows).logits, model(rows).logits, sorted(vars(model))

    def unwrapped(self, model, rows):
        plain = self.trainer.accelerator.unwrap_model(model)
        again = extract_model_from_parallel(model, keep_torch_compile=False)
        return plain(rows).logits, again is plain, plain.state_dict(), halved(copy.deepcopy(plain))(rows).logits

    def stored(self, model, rows):
        data = saved(model)
        return {"answer": halved(loaded(data))(rows).logits, "size": len(data) > 0}

    def pretrained(self, model, step):
        if step % 10 != 1:
            return None
        model.save_pretrained(f"pretrained-{step}")
        again = transformers.GPT2LMHeadModel.from_pretrained(f"pretrained-{step}")
        return again.state_dict(), sorted(os.listdir(f"pretrained-{step}"))  # noqa: PTH208


if __name__ == "__main__":
    torch.set_num_threads(1)
    transformers.set_seed(0)
    config = transformers.GPT2Config(vocab_size=64, n_positions=16, n_embd=16, n_layer=1, n_head=2, bos_token_id=0,
                                     eos_token_id=0)  # fmt: skip
    model = transformers.GPT2LMHeadModel(config)
    arguments = transformers.TrainingArguments(
        "out", max_steps=STEPS, per_device_train_batch_size=4, save_strategy="steps", save_steps=10, eval_steps=10,
        eval_strategy="steps", load_best_model_at_end=True, save_total_limit=2, report_to=[], disable_tqdm=True,
        use_cpu=True, seed=0, logging_strategy="no",
    )  # fmt: skip
    callback = Operations()
    trainer = transformers.Trainer(
        model, arguments, train_dataset=Rows(256), eval_dataset=Rows(8), callbacks=[callback]
    )
    callback.trainer = trainer
    loss = trainer.train().training_loss
    notify("trainer training", STEPS, "loss and weights", [loss, dict(model.state_dict())])
    notify("trainer training", STEPS, "best", [trainer.state.best_metric, str(trainer.state.best_model_checkpoint)])
    trainer.save_model("final")
    again = transformers.GPT2LMHeadModel.from_pretrained("final")
    notify("trainer training", STEPS, "final", dict(again.state_dict()))

"""Accelerate: prepare, accumulate, save_state and load_state, unwrap_model and get_state_dict in mid-training."""

import copy
import os
import warnings

warnings.simplefilter("ignore")

import accelerate  # noqa: E402
import torch  # noqa: E402
from training import STEPS, Net, do, halved, loaded, notify, objects_of_the_job, pace, saved  # noqa: E402


def states(accelerator, model, optimizer, step, rows):
    """Saves everything, goes on, and comes back."""
    if step % 5 != 1:
        return None
    folder = accelerator.save_state(f"state-{step}")
    before = copy.deepcopy(model.state_dict())
    halved(model)
    away = model(rows)
    accelerator.load_state(folder)
    files = sorted(os.listdir(folder))  # noqa: PTH208
    return away, model(rows), before, files


def unwrapped(accelerator, model, rows):
    plain = accelerator.unwrap_model(model)
    return plain(rows), halved(copy.deepcopy(plain))(rows), accelerator.get_state_dict(model), sorted(vars(plain))


def stored(accelerator, model, step, rows):
    data = saved(accelerator.unwrap_model(model))
    accelerator.save(model.state_dict(), f"weights-{step}.bin")
    found = torch.load(f"weights-{step}.bin")
    return {"answer": halved(loaded(data))(rows), "file": found, "size": len(data) > 0}


def main():
    torch.set_num_threads(1)
    accelerate.utils.set_seed(0)
    accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=2)
    accelerator.scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 10)
    data = torch.utils.data.TensorDataset(torch.randn(STEPS * 16, 16), torch.randn(STEPS * 16, 4))
    loader = torch.utils.data.DataLoader(data, batch_size=8, shuffle=True)
    model, optimizer, loader, schedule = accelerator.prepare(model, optimizer, loader, schedule)
    step = 0
    for rows, wanted in loader:
        with accelerator.accumulate(model):
            loss = torch.nn.functional.mse_loss(model(rows), wanted)
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
        if not accelerator.sync_gradients:
            continue
        notify("accelerate training", step, "loss", loss)
        do("accelerate save_state and load_state", step, states, accelerator, model, optimizer, step, rows)
        do("accelerate unwrap_model", step, unwrapped, accelerator, model, rows)
        do("accelerate save", step, stored, accelerator, model, step, rows)
        do("accelerate objects of the job", step, objects_of_the_job)
        pace(step)
        step += 1
    notify("accelerate training", STEPS, "weights", dict(model.state_dict()))


if __name__ == "__main__":
    main()

"""Loops of generated jobs: how the training is written, and where in it a fault can stand.

A template is a list of sections (file name, text). `@place` stands where a fault or its twin goes, with the indentation
of its line; capitals in angle brackets are filled in by `compose`.
"""

from __future__ import annotations

from dataclasses import dataclass

Sections = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Loop:
    """One way to write a training. places: of faults. needs: modules beyond torch. ranks: under torchrun."""

    name: str
    sections: Sections
    places: tuple[str, ...]
    needs: tuple[str, ...] = ()
    ranks: int = 1


DATASET = "<DATASET>"
BY_SAMPLE = """
class Samples(Dataset):
    \"\"\"Made-up samples, in memory.\"\"\"

    def __init__(self, count):
        random = np.random.default_rng(<SEED>)
        self.x = <INPUTS>
        self.y = <TARGETS>

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        key = index
        @item
        return self.x[index], self.y[index]


def collate(samples):
    x = torch.stack([sample[0] for sample in samples])
    y = torch.stack([sample[1] for sample in samples])
    key = int(y.sum())
    @collate
    return x, y
"""
BY_BATCH = """
class Samples(Dataset):
    \"\"\"Made-up samples, in memory, fetched a batch at a time.\"\"\"

    def __init__(self, count):
        random = np.random.default_rng(<SEED>)
        self.x = <INPUTS>
        self.y = <TARGETS>

    def __len__(self):
        return len(self.x)

    def __getitems__(self, indices):
        return self.x[indices], self.y[indices]


def collate(batch):
    x, y = batch
    key = int(y.sum())
    @collate
    return x, y
"""
LOSS = """
def compute_loss(output, y):
    loss = <LOSS>
    key = output.shape[0]
    @loss
    return loss
"""
MODEL = "<MODEL>" + "\n" + LOSS
HOOK = """
def watch(module, inputs, output):
    key = output.shape[0]
    @hook


model.<HOOKED>.register_forward_hook(watch)
"""
OPTIMIZER = "@optimizer\n"

PLAIN = Loop(
    "plain",
    (
        ("data.py", DATASET),
        ("model.py", MODEL),
        ("train.py", """
@setting
model = Network()
"""
+ HOOK + OPTIMIZER + """
loader = DataLoader(Samples(<COUNT>), batch_size=<BATCH>, shuffle=True, collate_fn=collate, drop_last=True<WORKERS>
step = 0
while step < <STEPS>:
    for x, y in loader:
        key = step
        @before
        optimizer.zero_grad()
        output = model(x)
        loss = compute_loss(output, y)
        loss.backward()
        optimizer.step()
        @after
        if step % 50 == 0:
            print(f"step {step}: loss {loss.item():.4f}")
        step += 1
        if step == <STEPS>:
            break
"""),
    ),
    ("item", "collate", "before", "after", "hook", "loss", "setting", "optimizer", "loader"),
)  # fmt: skip

TRAINER = Loop(
    "trainer class",
    (
        ("data.py", DATASET),
        ("model.py", MODEL),
        ("callbacks.py", """
class Callback:
    \"\"\"Does something after each step.\"\"\"

    def on_step_end(self, model, step, loss):
        key = step
        @callback


class Progress(Callback):
    \"\"\"Prints the loss now and then.\"\"\"

    def on_step_end(self, model, step, loss):
        if step % 50 == 0:
            print(f"step {step}: loss {loss.item():.4f}")
"""),
        ("trainer.py", """
class Trainer:
    \"\"\"Trains a model for a number of steps.\"\"\"

    def __init__(self, model, optimizer, loader, callbacks):
        self.model, self.optimizer, self.loader, self.callbacks = model, optimizer, loader, callbacks
        self.step = 0

    def train_step(self, x, y):
        model, step = self.model, self.step
        key = step
        @before
        self.optimizer.zero_grad()
        output = self.model(x)
        loss = compute_loss(output, y)
        loss.backward()
        self.optimizer.step()
        @after
        return loss.detach()

    def fit(self, steps):
        while self.step < steps:
            for x, y in self.loader:
                loss = self.train_step(x, y)
                for callback in self.callbacks:
                    callback.on_step_end(self.model, self.step, loss)
                self.step += 1
                if self.step == steps:
                    break
"""),
        ("train.py", """
@setting
model = Network()
""" + HOOK + OPTIMIZER + """
loader = DataLoader(Samples(<COUNT>), batch_size=<BATCH>, shuffle=True, collate_fn=collate, drop_last=True<WORKERS>
Trainer(model, optimizer, loader, [Callback(), Progress()]).fit(<STEPS>)
"""),
    ),
    ("item", "collate", "before", "after", "hook", "callback", "loss", "setting", "optimizer", "loader"),
)  # fmt: skip

ACCUMULATION = Loop(
    "accumulation",
    (
        ("data.py", DATASET),
        ("model.py", MODEL),
        ("train.py", """
@setting
model = Network()
""" + HOOK + OPTIMIZER + """
loader = DataLoader(Samples(<COUNT>), batch_size=<BATCH>, shuffle=True, collate_fn=collate, drop_last=True<WORKERS>
step, micro = 0, 0
while step < <STEPS>:
    for x, y in loader:
        key = step
        @before
        output = model(x)
        loss = compute_loss(output, y)
        (loss / 2).backward()
        micro += 1
        if micro % 2:
            continue
        optimizer.step()
        @after
        optimizer.zero_grad()
        if step % 50 == 0:
            print(f"step {step}: loss {loss.item():.4f}")
        step += 1
        if step == <STEPS>:
            break
"""),
    ),
    ("collate", "before", "after", "hook", "loss", "setting", "optimizer", "loader"),
)  # fmt: skip

CLOSURE = Loop(
    "closure",
    (
        ("data.py", DATASET),
        ("model.py", MODEL),
        ("train.py", """
@setting
model = Network()
""" + HOOK + OPTIMIZER + """
loader = DataLoader(Samples(<COUNT>), batch_size=<BATCH>, shuffle=True, collate_fn=collate, drop_last=True<WORKERS>


def train_one(step, x, y):
    key = step
    @before

    def closure():
        optimizer.zero_grad()
        loss = compute_loss(model(x), y)
        loss.backward()
        return loss

    return optimizer.step(closure)


step = 0
while step < <STEPS>:
    for x, y in loader:
        loss = train_one(step, x, y)
        if step % 50 == 0:
            print(f"step {step}: loss {loss.item():.4f}")
        step += 1
        if step == <STEPS>:
            break
"""),
    ),
    ("collate", "before", "hook", "loss", "setting", "optimizer", "loader"),
)  # fmt: skip

GENERATOR = Loop(
    "own generator",
    (
        ("data.py", """
def batches(steps):
    random = np.random.default_rng(<SEED>)
    count = 4 * <BATCH>
    inputs = <INPUTS>
    targets = <TARGETS>
    for key in range(steps):
        chosen = torch.from_numpy(random.integers(0, count, <BATCH>))
        @generator
        yield inputs[chosen], targets[chosen]
"""),
        ("model.py", MODEL),
        ("train.py", """
@setting
model = Network()
""" + HOOK + OPTIMIZER + """
for step, (x, y) in enumerate(batches(<STEPS>)):
    key = step
    @before
    optimizer.zero_grad(set_to_none=True)
    output = model(x)
    loss = compute_loss(output, y)
    loss.backward()
    optimizer.step()
    @after
    if step % 50 == 0:
        print(f"step {step}: loss {loss.item():.4f}")
"""),
    ),
    ("generator", "before", "after", "hook", "loss", "setting", "optimizer"),
)  # fmt: skip

ITERABLE = Loop(
    "IterableDataset",
    (
        ("data.py", """
class Stream(IterableDataset):
    \"\"\"An endless stream of batches.\"\"\"

    def __init__(self, count):
        random = np.random.default_rng(<SEED>)
        self.x = <INPUTS>
        self.y = <TARGETS>

    def __iter__(self):
        order = np.random.default_rng(1)
        key = 0
        while True:
            chosen = torch.from_numpy(order.integers(0, len(self.x), <BATCH>))
            key += 1
            @generator
            yield self.x[chosen], self.y[chosen]
"""),
        ("model.py", MODEL),
        ("train.py", """
@setting
model = Network()
""" + HOOK + OPTIMIZER + """
loader = iter(DataLoader(Stream(<COUNT>), batch_size=None))
for step in range(<STEPS>):
    x, y = next(loader)
    key = step
    @before
    output = model(x)
    loss = compute_loss(output, y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    @after
    if step % 50 == 0:
        print(f"step {step}: loss {loss.item():.4f}")
"""),
    ),
    ("generator", "before", "after", "hook", "loss", "setting", "optimizer"),
)  # fmt: skip

SAMPLER = Loop(
    "batch sampler",
    (
        ("data.py", DATASET + """

class Batches(Sampler):
    \"\"\"Batches in an order of its own.\"\"\"

    def __init__(self, count, size):
        self.count, self.size = count, size

    def __len__(self):
        return self.count // self.size

    def __iter__(self):
        order = torch.randperm(self.count).tolist()
        for key in range(len(self)):
            @sampler
            yield order[key * self.size : (key + 1) * self.size]
"""),
        ("model.py", MODEL),
        ("train.py", """
@setting
model = Network()
""" + HOOK + OPTIMIZER + """
data = Samples(<COUNT>)
loader = DataLoader(data, batch_sampler=Batches(len(data), <BATCH>), collate_fn=collate)
step = 0
for epoch in range(<STEPS>):
    for x, y in loader:
        key = step
        @before
        optimizer.zero_grad()
        output = model(x)
        loss = compute_loss(output, y)
        loss.backward()
        optimizer.step()
        @after
        step += 1
        if step == <STEPS>:
            break
    print(f"epoch {epoch}: loss {loss.item():.4f}")
    if step == <STEPS>:
        break
"""),
    ),
    ("sampler", "collate", "before", "after", "hook", "loss", "setting", "optimizer"),
)  # fmt: skip

TWO_MODELS = Loop(
    "two models",
    (
        ("data.py", DATASET),
        ("model.py", MODEL),
        ("train.py", """
@setting
model = Network()
critic = nn.Sequential(nn.Flatten(), nn.LazyLinear(64), nn.ReLU(), nn.Linear(64, 1))
critic(<PROBE>)
""" + HOOK + OPTIMIZER + """
second = torch.optim.AdamW(critic.parameters(), lr=1e-4, fused=True)
loader = DataLoader(Samples(<COUNT>), batch_size=<BATCH>, shuffle=True, collate_fn=collate, drop_last=True<WORKERS>
step = 0
while step < <STEPS>:
    for x, y in loader:
        key = step
        @before
        critic_loss = critic(x.float()).pow(2).mean()
        second.zero_grad()
        critic_loss.backward()
        second.step()
        optimizer.zero_grad()
        output = model(x)
        loss = compute_loss(output, y)
        loss.backward()
        optimizer.step()
        @after
        if step % 50 == 0:
            print(f"step {step}: loss {loss.item():.4f}, critic {critic_loss.item():.4f}")
        step += 1
        if step == <STEPS>:
            break
"""),
    ),
    ("item", "collate", "before", "after", "hook", "loss", "setting", "optimizer", "loader"),
)  # fmt: skip

RANKS = Loop(
    "two ranks",
    (
        ("data.py", DATASET),
        ("model.py", MODEL),
        ("train.py", """
torch.distributed.init_process_group("gloo")
rank = torch.distributed.get_rank()
torch.set_num_threads(1)
@setting
model = Network()
""" + HOOK + OPTIMIZER + """
wrapped = nn.parallel.DistributedDataParallel(model)
data = Samples(<COUNT>)
sampler = DistributedSampler(data)
loader = DataLoader(data, batch_size=<BATCH>, sampler=sampler, collate_fn=collate, drop_last=True)
step = 0
while step < <STEPS>:
    for x, y in loader:
        key = step
        @before
        optimizer.zero_grad()
        output = wrapped(x)
        loss = compute_loss(output, y)
        loss.backward()
        optimizer.step()
        @after
        if rank == 0 and step % 50 == 0:
            print(f"step {step}: loss {loss.item():.4f}")
        step += 1
        if step == <STEPS>:
            break
torch.distributed.barrier()
torch.distributed.destroy_process_group()
"""),
    ),
    ("collate", "before", "after", "hook", "loss"),
    ranks=2,
)  # fmt: skip

ACCELERATE = Loop(
    "Accelerate",
    (
        ("data.py", DATASET),
        ("model.py", MODEL),
        ("train.py", """
from accelerate import Accelerator

@setting
accelerator = Accelerator(cpu=True)
model = Network()
""" + HOOK + OPTIMIZER + """
loader = DataLoader(Samples(<COUNT>), batch_size=<BATCH>, shuffle=True, collate_fn=collate, drop_last=True<WORKERS>
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
step = 0
while step < <STEPS>:
    for x, y in loader:
        key = step
        @before
        optimizer.zero_grad()
        output = model(x)
        loss = compute_loss(output, y)
        accelerator.backward(loss)
        optimizer.step()
        @after
        if step % 50 == 0:
            accelerator.print(f"step {step}: loss {loss.item():.4f}")
        step += 1
        if step == <STEPS>:
            break
"""),
    ),
    ("item", "collate", "before", "after", "hook", "loss", "optimizer", "loader"),
    needs=("accelerate",),
)  # fmt: skip

LIGHTNING = Loop(
    "Lightning",
    (
        ("data.py", DATASET),
        ("model.py", MODEL),
        ("train.py", """
import lightning


class Module(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.model = Network()

    def training_step(self, batch, number):
        x, y = batch
        key = number
        @before
        loss = compute_loss(self.model(x), y)
        self.log("loss", loss)
        return loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-4, fused=True)


class Watch(lightning.Callback):
    def on_train_batch_end(self, trainer, module, outputs, batch, number):
        model, key = module, number
        @callback


@setting
loader = DataLoader(Samples(<COUNT>), batch_size=<BATCH>, shuffle=True, collate_fn=collate, drop_last=True<WORKERS>
lightning.Trainer(
    max_steps=<STEPS>, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
    enable_model_summary=False, callbacks=[Watch()],
).fit(Module(), loader)
"""),
    ),
    ("item", "collate", "before", "callback", "loss"),
    needs=("lightning",),
)  # fmt: skip

HF_TRAINER = Loop(
    "HF Trainer",
    (
        ("data.py", DATASET),
        ("model.py", MODEL),
        ("train.py", """
import tempfile

from transformers import Trainer, TrainerCallback, TrainingArguments


class Wrapped(nn.Module):
    def __init__(self):
        super().__init__()
        self.model = Network()

    def forward(self, x, labels):
        output = self.model(x)
        return {"loss": compute_loss(output, labels), "logits": output}


class Watch(TrainerCallback):
    def on_step_end(self, arguments, state, control, model=None, **others):
        key = state.global_step
        @callback


@setting
arguments = TrainingArguments(
    output_dir=tempfile.mkdtemp(), max_steps=<STEPS>, per_device_train_batch_size=<BATCH>, report_to=[], use_cpu=True,
    save_strategy="no", logging_steps=50, disable_tqdm=True, remove_unused_columns=False,
)
Trainer(Wrapped(), arguments, train_dataset=Samples(<COUNT>), data_collator=collate, callbacks=[Watch()]).train()
"""),
    ),
    ("item", "collate", "callback", "loss"),
    needs=("transformers", "accelerate"),
)  # fmt: skip

ROLLOUTS = Loop(
    "rollouts",
    (
        ("environment.py", """
class Environment:
    \"\"\"A walk towards a goal.\"\"\"

    def __init__(self):
        self.random = np.random.default_rng(<SEED>)
        self.state = np.zeros(8, np.float32)

    def step(self, action):
        key = int(action)
        @generator
        self.state = self.state * 0.9
        self.state[action] += 0.1 * self.random.standard_normal()
        return self.state, float(-np.abs(self.state).sum())
"""),
        ("train.py", """
@setting
width = <HIDDEN>
model = nn.Sequential(nn.Linear(8, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(), nn.Linear(width, 8))
""" + OPTIMIZER + """
environment = Environment()
for step in range(<STEPS>):
    key = step
    states, actions, rewards = [], [], []
    state = environment.state
    with torch.no_grad():
        for _ in range(16):
            states.append(torch.from_numpy(state.copy()))
            action = torch.distributions.Categorical(logits=model(states[-1])).sample()
            state, reward = environment.step(action.item())
            actions.append(action)
            rewards.append(reward)
    @before
    returns = torch.tensor(rewards).flip(0).cumsum(0).flip(0)
    for _ in range(4):
        chances = torch.distributions.Categorical(logits=model(torch.stack(states))).log_prob(torch.stack(actions))
        loss = -(chances * (returns - returns.mean())).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    @after
    if step % 50 == 0:
        print(f"step {step}: loss {loss.item():.4f}")
"""),
    ),
    ("generator", "before", "after"),
)  # fmt: skip

LOOPS = (
    PLAIN, TRAINER, ACCUMULATION, CLOSURE, GENERATOR, ITERABLE, SAMPLER, TWO_MODELS, RANKS, ACCELERATE, LIGHTNING,
    HF_TRAINER, ROLLOUTS,
)  # fmt: skip

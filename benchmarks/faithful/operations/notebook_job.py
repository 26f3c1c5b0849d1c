"""A notebook: the training and its operations are cells, which a kernel runs one by one."""

import sys

import nbclient
import nbformat

CELLS = """
import copy, io, pickle, torch
from training import Net, STEPS, do, halved, loaded, notify, saved, train, pace
torch.set_num_threads(1)
torch.manual_seed(0)
---
class Own(Net):
    def forward(self, rows):
        return super().forward(rows) + 1

model = Own()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
---
def copied(step, rows):
    return halved(copy.deepcopy(model))(rows), model(rows), sorted(vars(model))

def pickled(step, rows):
    return halved(pickle.loads(pickle.dumps(model)))(rows), halved(loaded(saved(model)))(rows)

def one(step):
    torch.manual_seed(step)
    batch = torch.randn(8, 16), torch.randn(8, 4)
    notify("notebook training", step, "loss", train(model, optimizer, batch))
    do("notebook deepcopy in a cell", step, copied, step, batch[0])
    do("notebook pickle of a class of a cell", step, pickled, step, batch[0])
    pace(step)
---
for step in range(20):
    one(step)
---
for step in range(20, 40):
    one(step)
---
for step in range(40, STEPS):
    one(step)
notify("notebook training", STEPS, "weights", dict(model.state_dict()))
---
print("cells are done")
"""

if __name__ == "__main__":
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(each) for each in CELLS.split("---\n")])
    nbclient.NotebookClient(notebook, timeout=300, kernel_name="python3").execute()
    for cell in notebook.cells:
        for output in cell.outputs:
            (sys.stderr if output.get("name") == "stderr" else sys.stdout).write(output.get("text", ""))

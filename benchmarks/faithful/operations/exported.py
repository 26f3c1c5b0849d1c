"""Export of the model in mid-training: torch.export, ONNX, and quantisation."""

import copy
import importlib.util
import io
import warnings

import torch
from torch.ao.quantization import get_default_qconfig_mapping
from torch.ao.quantization.quantize_fx import convert_fx, prepare_fx, prepare_qat_fx
from training import DEAR, FEW, Convolutions, halved, main, operation

warnings.simplefilter("ignore")


@operation(steps=DEAR)
def export(model, optimizer, step, batch):
    program = torch.export.export(model, (batch[0],))
    file = io.BytesIO()
    torch.export.save(program, file)
    again = torch.export.load(io.BytesIO(file.getvalue())).module()
    return {"answers": (program.module()(batch[0]), halved(again)(batch[0]), model(batch[0])),
            "graph": str(program.graph), "bytes": file.getvalue()}  # fmt: skip


@operation(Convolutions, steps=DEAR)
def export_with_any_batch(model, optimizer, step, batch):
    shapes = ({0: torch.export.Dim("batch", min=2, max=64)},)
    program = torch.export.export(model, (batch[0],), dynamic_shapes=shapes, strict=step % 2 == 0)
    lowered = program.run_decompositions()
    return program.module()(batch[0][:4]), str(lowered.graph)


@operation(steps=DEAR)
def quantised_dynamically(model, optimizer, step, batch):
    other = torch.ao.quantization.quantize_dynamic(model, {torch.nn.Linear}, dtype=torch.qint8)
    return other(batch[0]), model(batch[0]), type(other.first).__name__


class Ends(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.enter, self.net, self.leave = (
            torch.ao.quantization.QuantStub(),
            Plain(),
            torch.ao.quantization.DeQuantStub(),
        )

    def forward(self, rows):
        return self.leave(self.net(self.enter(rows)))


class Plain(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.relu, self.last = torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 4)

    def forward(self, rows):
        return self.last(self.relu(self.first(rows)))


@operation(Ends, steps=DEAR)
def quantised_eagerly(model, optimizer, step, batch):
    other = copy.deepcopy(model).eval()
    other.qconfig = torch.ao.quantization.get_default_qconfig("x86")
    torch.ao.quantization.fuse_modules(other.net, [["first", "relu"]], inplace=True)
    torch.ao.quantization.prepare(other, inplace=True)
    other(batch[0])
    torch.ao.quantization.convert(other, inplace=True)
    return other(batch[0]), model(batch[0])


@operation(Ends, steps=DEAR)
def quantisation_aware_training(model, optimizer, step, batch):
    if step == 2:
        model.qconfig = torch.ao.quantization.get_default_qat_qconfig("x86")
        torch.ao.quantization.prepare_qat(model, inplace=True)
        optimizer.param_groups[0]["params"] = list(model.parameters())
    if step < 2:
        return model(batch[0])
    other = torch.ao.quantization.convert(copy.deepcopy(model).eval())
    return model(batch[0]), other(batch[0])


@operation(Convolutions, steps=DEAR)
def quantised_graph(model, optimizer, step, batch):
    mapping = get_default_qconfig_mapping("x86")
    other = prepare_fx(copy.deepcopy(model).eval(), mapping, (batch[0],))
    other(batch[0])
    aware = prepare_qat_fx(copy.deepcopy(model).train(), mapping, (batch[0],))
    return convert_fx(other)(batch[0]), aware(batch[0]), model(batch[0])


if importlib.util.find_spec("torchao"):

    @operation(Plain, steps=DEAR)
    def quantised_export(model, optimizer, step, batch):
        from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e
        from torchao.quantization.pt2e.quantizer import x86_inductor_quantizer as x86

        quantizer = x86.X86InductorQuantizer().set_global(x86.get_default_x86_inductor_quantization_config())
        prepared = prepare_pt2e(torch.export.export(copy.deepcopy(model).eval(), (batch[0],)).module(), quantizer)
        prepared(batch[0])
        return convert_pt2e(prepared)(batch[0]), model(batch[0])


if importlib.util.find_spec("onnx"):

    @operation(steps=DEAR)
    def onnx_by_tracing(model, optimizer, step, batch):
        file = io.BytesIO()
        torch.onnx.export(model, (batch[0],), file, dynamo=False)
        return {"bytes": file.getvalue(), "answer": model(batch[0])}


if importlib.util.find_spec("onnxscript"):

    @operation(steps=FEW)
    def onnx_by_export(model, optimizer, step, batch):
        program = torch.onnx.export(model, (batch[0],), dynamo=True, verbose=False)
        nodes = [(node.op_type, len(node.inputs)) for node in program.model.graph]
        weights = {name: torch.from_numpy(each.const_value.numpy().copy())
                   for name, each in program.model.graph.initializers.items()}  # fmt: skip
        return {"nodes": nodes, "weights": weights, "answer": model(batch[0])}


if __name__ == "__main__":
    main()

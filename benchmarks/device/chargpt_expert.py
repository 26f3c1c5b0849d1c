"""minGPT's chargpt as an engineer would have it: attention by one function, the GELU by one, no loader's workers.

    python benchmarks/device/chargpt_expert.py CLONE [chargpt's own options]

CLONE: of karpathy's minGPT, with an input.txt in projects/chargpt. Runs there.
"""

from __future__ import annotations

import os
import runpy
import sys
from pathlib import Path
from typing import Any

from torch import Tensor
from torch.nn import functional


def attention(self: Any, x: Tensor) -> Tensor:
    """Instead of the product, the mask, the softmax, the dropout and the product of its own."""
    batch, length, width = x.shape
    parts = self.c_attn(x).view(batch, length, 3, self.n_head, width // self.n_head).permute(2, 0, 3, 1, 4)
    dropout = self.attn_dropout.p if self.training else 0.0
    attended = functional.scaled_dot_product_attention(*parts, dropout_p=dropout, is_causal=True)
    return self.resid_dropout(self.c_proj(attended.transpose(1, 2).reshape(batch, length, width)))


def main() -> None:
    clone = Path(sys.argv[1]).resolve()
    sys.path.insert(0, str(clone))
    from mingpt import model

    model.CausalSelfAttention.forward = attention
    model.NewGELU.forward = lambda self, x: functional.gelu(x, approximate="tanh")
    os.chdir(clone / "projects" / "chargpt")
    sys.argv = ["chargpt.py", *sys.argv[2:], "--trainer.num_workers=0"]
    runpy.run_path("chargpt.py", run_name="__main__")


if __name__ == "__main__":
    main()

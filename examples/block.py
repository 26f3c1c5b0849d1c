"""Six transformer layers, to be timed in every mode of torch.compile.

steptime bench examples/block.py:model --shapes 8x64x128 --backward --modes eager,reduce-overhead,max-autotune
"""

from __future__ import annotations

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(
    *(nn.TransformerEncoderLayer(128, 4, 512, dropout=0.0, batch_first=True, norm_first=True) for _ in range(6))
)

"""Snapshots of PyTorch's allocators (`torch.cuda.memory._dump_snapshot`), read without running anything in them.

One law: a snapshot is a pickle from a stranger. No class is looked up, no function is called, and what is kept grows
with what the file says of memory, never with what it claims about itself.
"""

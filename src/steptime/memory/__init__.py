"""Memory: who owned which bytes when, from an allocator's snapshot or from the memory events of a trace.

One law: an account of an instant sums to what the process had reserved then, to the byte, or raises.
"""

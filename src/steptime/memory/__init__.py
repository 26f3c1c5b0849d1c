"""Memory: which owner held which bytes when, from an allocator's snapshot or from the memory events of a trace. One
law: a breakdown of an instant sums to what the process had reserved then, to the byte, or raises."""

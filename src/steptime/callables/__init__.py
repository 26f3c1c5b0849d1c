"""Callables beside each other: `steptime bench`, and `steptime.bench`."""

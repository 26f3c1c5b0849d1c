"""Callables next to each other: `steptime bench`, and `steptime.bench`."""

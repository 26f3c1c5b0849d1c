"""How long a test waits for what always comes, before it fails: on no machine, under no load, is that a measurement."""

PATIENCE = 300
"""s."""

"""Memory in the user's process: who keeps what steps leave behind, and what was there when it ran out.

One law: nothing of the user's is called, kept or changed. What Python knows is asked of Python's garbage collector.
"""

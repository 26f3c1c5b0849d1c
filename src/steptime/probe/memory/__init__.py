"""Memory in the user's process: who keeps what steps leave behind, and what was there when it ran out.

One law: nothing of the user's is called, kept or changed. Python's garbage collector answers for Python's objects.
"""

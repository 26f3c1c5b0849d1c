"""Memory in the user's process: holders of objects that outlive their step, and the state when memory ran out.

Nothing of the user's is called, kept or changed: Python's garbage collector lists the objects.
"""

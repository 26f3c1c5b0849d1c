"""Recording: the folder that a job leaves behind, and its reader, `load(path) -> Recording`.

It holds everything captured and nothing derived.
"""

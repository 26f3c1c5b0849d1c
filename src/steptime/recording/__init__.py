"""The recording: a folder that a watched job leaves behind, and its reader.

One law: everything captured, nothing derived. `load(path) -> Recording`.
"""

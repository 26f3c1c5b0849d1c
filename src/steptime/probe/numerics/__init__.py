"""The probe of `steptime nan`: a cheap watch for what is not finite, and a look at every operator around one step.

It stands in the place of the session: no journal is written, no step is timed. Standard library and torch only.
"""

"""The probe of `steptime nan`: a cheap watch for what is not finite, and a look at every operator around one step.

It is in the place of the session: no journal is written, no step is timed. A job whose fault was found ends at a
step's boundary, on all ranks of this host, without its own end: a final save of a model full of NaN helps no one, and a
rank that ended alone would leave the others waiting.
"""

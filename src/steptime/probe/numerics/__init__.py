"""Probe of `steptime nan`: a cheap monitor of values that are not finite, and an observer of every operator in one
step.

It replaces the session: no journal is written, no step is timed. After a finding, the job ends at a step boundary, on
all ranks of this host, without its own clean-up. Nobody needs a final save of a model full of NaN, and a rank that
ended alone would leave the others waiting.
"""

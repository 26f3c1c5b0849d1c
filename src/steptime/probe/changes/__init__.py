"""Changes of a trial to the user's job, in the user's process: appliers by name, and the variant that ends the
job.

`trial` is loaded only where the plan has changes or a variant; else nothing of this package is loaded.
"""

"""Changes of a trial to the job, in the user's process: appliers by name, and the variant that ends the job.

The package is loaded only if the plan has changes or a variant.
"""

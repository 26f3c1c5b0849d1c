"""What a trial changes about the user's job, in the user's process: appliers by name, and the arm that ends the job.

`trial.begin(plan)` is called only where the plan has changes or an arm; else nothing of this package is loaded.
"""

"""What the names in a trace mean: see `steptime.links.names`, which holds it."""

from steptime.links.names import *  # noqa: F403

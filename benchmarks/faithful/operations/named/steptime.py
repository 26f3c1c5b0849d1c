"""A job's own module, which has the name of somebody else's package."""

SCALE = 3.0


def scaled(value):
    return SCALE * value

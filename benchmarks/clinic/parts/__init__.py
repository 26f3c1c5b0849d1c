"""The parts that generated jobs are composed of: models, loops, and faults with their idiomatic twins."""

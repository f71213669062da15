"""The engine: rounds, local programs on two backends, mixing, evaluation, checkpoints."""

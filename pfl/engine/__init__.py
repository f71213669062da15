"""The engine: rounds, local programs on two backends, mixing, evaluation, checkpoints."""

VERSION = 1
"""The engine's numerics version. Raise it when an edit moves the numbers of any method (the golden
trajectories tell): results of the old version are then no longer served from a ledger."""

"""A simulator of personalised federated learning: a federation of clients as tensors."""

__version__ = "0.1.0"

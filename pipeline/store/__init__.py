"""Stored results: the ledger, MLflow, and the files of a run."""

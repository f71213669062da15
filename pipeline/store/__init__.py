"""What is known: the ledger, MLflow, and the files of a run."""

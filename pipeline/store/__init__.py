"""Stored results: the ledger and the files of a run."""

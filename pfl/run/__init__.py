"""Simulations as users and sweeps run them: the API, validation, trials, fingerprints of the code."""

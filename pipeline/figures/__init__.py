"""The papers' figures: runs and plots, one YAML file per figure in `papers/*/figures/`."""

"""The papers' figures: what runs and how it is drawn, one YAML file per figure in `figures/`."""

"""The stages that compute."""

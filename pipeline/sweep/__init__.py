"""What runs: the stages that compute."""

"""The same federated training by several frameworks, each in its own environment."""

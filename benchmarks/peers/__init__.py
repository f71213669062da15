"""The same federated training by several frameworks, each in an environment of its own."""

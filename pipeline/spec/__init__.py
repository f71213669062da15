"""What a table says: its schema, its cells, the published numbers, and what can be checked before a run."""

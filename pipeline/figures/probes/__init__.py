"""What looks at a federation while it runs, one per file; runs seen by the same file are not repeated."""

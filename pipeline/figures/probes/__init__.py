"""What looks at a federation while it runs, one a file: a run seen through the same file is not run again."""

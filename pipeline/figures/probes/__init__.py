"""Measurements of a running federation, one probe per file; runs that the same file has measured
are not repeated."""

"""What is measured of a federation while it runs, one probe per file; runs that the same
file has measured are not repeated."""

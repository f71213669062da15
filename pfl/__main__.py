"""``python -m pfl``: the command line, for machines where the package is not installed."""

from pfl.cli import main

main()

"""Shared by all of pfl: configuration, errors, files, random streams, registries."""

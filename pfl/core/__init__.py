"""What everything in pfl may use: configuration, errors, files, random streams, registries."""

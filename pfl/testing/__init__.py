"""What proves that the code does what it did: synthetic federations, an emulated device, the battery."""

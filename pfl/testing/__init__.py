"""Tests that edited code leaves results unchanged: synthetic federations, an emulated device, the battery."""

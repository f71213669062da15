"""Execution of the pipeline's stages."""

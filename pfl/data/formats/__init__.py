"""Readers of file formats: image folders, .npz files and MNIST's idx files."""

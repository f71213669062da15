"""Analysis of models and updates: similarity of clients and layers, sensitivity, class activation maps."""

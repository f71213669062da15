"""Looking at models and updates: how alike clients and layers are, what is sensitive, where networks look."""

"""Specification of tables: schema, cells, published numbers, and validation."""

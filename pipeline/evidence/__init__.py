"""Results for others, in standard formats."""

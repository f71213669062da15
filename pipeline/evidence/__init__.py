"""Results for others: standard formats, checklists, and a page per paper."""

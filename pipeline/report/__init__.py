"""Reports: verdicts, claims, plots and pages."""

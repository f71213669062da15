"""What is shown: verdicts, claims, plots and pages."""

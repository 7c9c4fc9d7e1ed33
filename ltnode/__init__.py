"""ltnode."""

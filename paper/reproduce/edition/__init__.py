"""A whole edition of the reproduction: what belongs to it, what is recorded with provenance, and how long the rest takes."""

"""Untrusted image files: ``decode`` turns one into pixels, ``header`` takes a quick look, ``worker`` does so in a process that can be ended at any time."""

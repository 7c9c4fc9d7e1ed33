"""Untrusted image files: ``decode`` turns one into pixels, ``worker`` does so in a process that can be ended at any time."""

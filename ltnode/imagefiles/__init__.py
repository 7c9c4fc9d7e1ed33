"""Untrusted image files: ``decode`` makes pixels of one, ``header`` looks at one, ``worker`` is a process that can be ended."""

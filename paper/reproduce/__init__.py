"""The reproduction of the paper: its experiments with its own settings, its numbers next to ours, and a verdict for every claim.

Read in this order: the experiments (``one_dimensional``, ``motivating``, ``images``) record their results as JSON files;
``claims`` judges every statement of the paper by these results; ``pages`` writes what was found into Markdown; ``commands`` and
``command`` make all of it available as ``ltnode reproduce``. It runs from a clone of the repository and is not part of the wheel.
"""

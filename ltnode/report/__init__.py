"""Reports: every figure and table of the paper from rows of results, and one page that holds them all.

Read in this order: ``report`` (the one entry), ``runs`` (what it is made of), ``aggregate`` (over seeds), ``tables``, the figures
(``figure_schematic``, ``figures_1d``, ``figures_images``, ``figures_models``), ``style`` and ``page`` (the look).
"""

from ltnode.report.report import build_report

__all__ = ["build_report"]

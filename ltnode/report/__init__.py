"""Reports: the figures and tables of evaluated runs, and one page that holds them all.

Read in this order: ``report`` (the entry point), ``runs`` (what it reads), ``aggregate`` (results over seeds), ``tables`` and
``figures_images`` (from results), ``sections_models`` with ``figure_schematic``, ``posteriors``, ``figures_models`` and
``figures_1d`` (from trained models), and ``writer``, ``page`` and ``style`` (the appearance). ``published`` holds the paper's
values, with which results are compared if a caller passes them.
"""

from ltnode.report.report import build_report

__all__ = ["build_report"]

"""The demo: four models on one-dimensional data with a gap, as a table, figures and a page.

Read in this order: ``demo`` (the entry point), ``training``, ``gaussian_process`` (the yardstick), ``results`` (what is measured
and checked), ``page``.
"""

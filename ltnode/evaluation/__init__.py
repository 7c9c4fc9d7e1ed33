"""Evaluation: from a trained model to rows of results.

Read in this order: ``evaluate`` (the entry point), ``options`` (what can be chosen), ``predict`` (predictions of a whole set),
``protocols/`` (one file per kind of test), ``shifts`` and ``attacks`` (how images are changed), ``results`` (rows and files).
"""

from ltnode.evaluation.evaluate import default_protocols, evaluate
from ltnode.evaluation.options import EvaluationOptions
from ltnode.evaluation.protocols import PROTOCOLS, Protocol
from ltnode.evaluation.results import Cost, ResultRow, read_provenance, read_rows

__all__ = [
    "PROTOCOLS",
    "Cost",
    "EvaluationOptions",
    "Protocol",
    "ResultRow",
    "default_protocols",
    "evaluate",
    "read_provenance",
    "read_rows",
]

"""Metrics as pure functions of tensors or numpy arrays, which return a float, a tensor or a named tuple of curves.

Common arguments: ``probs`` (B, C) are class probabilities, ``labels`` (B,) class indices, ``confidence`` (B,) is larger for
more confident predictions (by default the largest probability), ``n_bins`` is the number of bins; ``scores_in`` (N,) and
``scores_out`` (M,) are larger for in-distribution examples; ``mean``, ``std`` and ``target`` have the same shape.

All inputs are checked, sums are accumulated in float64 on the device of the input, and ties are handled exactly, so that no
value depends on the order of the examples. Every function has an example that a test runs.
"""

from __future__ import annotations

from ltnode.metrics.calibration import (
    Reliability,
    adaptive_ece,
    apply_temperature,
    classwise_ece,
    ece,
    fit_temperature,
    reliability,
)
from ltnode.metrics.classification import (
    UncertaintySplit,
    brier,
    brier_mean_over_classes,
    entropy,
    error,
    log_likelihood,
    uncertainty_split,
)
from ltnode.metrics.conformal import conformal_threshold, prediction_sets
from ltnode.metrics.detection import aupr_in, aupr_out, auroc, detection_accuracy, fpr95, misclassification_auroc
from ltnode.metrics.regression import crps_gaussian, gaussian_entropy, gaussian_nll, interval_coverage, rmse
from ltnode.metrics.selective import (
    ConfidenceCurve,
    EntropyHistogram,
    RejectionCurve,
    RiskCoverage,
    aurc,
    confidence_curve,
    entropy_histogram,
    rejection_curve,
    risk_coverage,
)

__all__ = [
    "ConfidenceCurve",
    "EntropyHistogram",
    "RejectionCurve",
    "Reliability",
    "RiskCoverage",
    "UncertaintySplit",
    "adaptive_ece",
    "apply_temperature",
    "aupr_in",
    "aupr_out",
    "aurc",
    "auroc",
    "brier",
    "brier_mean_over_classes",
    "classwise_ece",
    "confidence_curve",
    "conformal_threshold",
    "crps_gaussian",
    "detection_accuracy",
    "ece",
    "entropy",
    "entropy_histogram",
    "error",
    "fit_temperature",
    "fpr95",
    "gaussian_entropy",
    "gaussian_nll",
    "interval_coverage",
    "log_likelihood",
    "misclassification_auroc",
    "prediction_sets",
    "rejection_curve",
    "reliability",
    "risk_coverage",
    "rmse",
    "uncertainty_split",
]

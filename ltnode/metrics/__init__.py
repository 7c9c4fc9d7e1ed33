"""Metrics as pure functions: tensors in, a number (or a small named tuple of curves) out.

Every sum runs in float64 on the device of the input, every input is checked, and examples of equal score are handled
exactly, so no value depends on the order of the examples.
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
from ltnode.metrics.detection import (
    aupr_in,
    aupr_out,
    auroc,
    detection_accuracy,
    fpr95,
    misclassification_auroc,
)
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

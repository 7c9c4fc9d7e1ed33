"""Distributions over the end-time T of a neural ODE: fixed, uniform or learnt.

``gamma`` contains the mathematics (closed-form divergence, quadrature in log time), ``distributions`` the distribution
objects, ``base`` the interface of the modules that a model trains, and ``posteriors`` these modules.
"""

from ltnode.endtime.base import EndTime
from ltnode.endtime.distributions import (
    GammaDistribution,
    GammaMixtureDistribution,
    PointDistribution,
    TimeDistribution,
    UniformDistribution,
)
from ltnode.endtime.gamma import gamma_kl
from ltnode.endtime.posteriors import AmortizedGammaTime, FixedTime, GammaMixtureTime, GammaTime, UniformTime

__all__ = [
    "AmortizedGammaTime",
    "EndTime",
    "FixedTime",
    "GammaDistribution",
    "GammaMixtureDistribution",
    "GammaMixtureTime",
    "GammaTime",
    "PointDistribution",
    "TimeDistribution",
    "UniformDistribution",
    "UniformTime",
    "gamma_kl",
]

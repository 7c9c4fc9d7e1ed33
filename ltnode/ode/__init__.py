"""Numerics: explicit Runge-Kutta solves with dense output and gradients through the accepted steps.

Read in this order: ``tableau`` (the methods as data), ``step`` (one step and its error), ``controller`` (step sizes),
``dense`` (states at any time), ``search`` (accepted edges, no graph), ``replay`` (the trajectory over known edges, with a graph),
``training_grid`` (a grid reused from solve to solve), ``solve`` (``odesolve``), ``batches`` (many batches side by side),
``stored_grid`` (the grid a trained model carries).
"""

from ltnode.ode.batches import odesolve_batches
from ltnode.ode.prediction_grid import fit_prediction_grid, odesolve_on_prediction_grid
from ltnode.ode.solve import Solution, odesolve
from ltnode.ode.status import SolverError, Stats, Status
from ltnode.ode.tableau import TABLEAUS, ButcherTableau
from ltnode.ode.training_grid import TrainingGrid

__all__ = [
    "TABLEAUS",
    "ButcherTableau",
    "Solution",
    "SolverError",
    "Stats",
    "Status",
    "TrainingGrid",
    "fit_prediction_grid",
    "odesolve",
    "odesolve_batches",
    "odesolve_on_prediction_grid",
]

"""Explicit Runge-Kutta solvers with dense output and gradients through the accepted steps.

Suggested reading order: ``tableau`` (methods as data), ``step`` (one step and its error), ``controller`` (step sizes),
``dense`` (states at arbitrary times), ``search`` (accepted edges, found without a graph), ``replay`` (the trajectory over
known edges, with a graph), ``training_grid`` (a grid reused by consecutive training steps), ``problem`` and ``solve``
(``odesolve``), ``prediction_grid`` (the grid saved with a trained model), ``batches`` (many batches at once).
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

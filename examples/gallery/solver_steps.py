# %% [markdown]
# # Where the solver works hard
#
# The Van der Pol oscillator is slow most of the time and then jumps. Dots are the ends of the accepted steps.
# The line comes from the dense output between them, so it costs nothing more.

# %% alt="Left: the oscillation with dots that crowd where it jumps. Right: error against evaluations for three methods of order 3 and 5."
import matplotlib.pyplot as plt
import torch

import ltnode


def oscillator(t, y):
    """Van der Pol's equation with a stiffness of 4."""
    position, speed = y.unbind(-1)
    return torch.stack([speed, 4 * (1 - position**2) * speed - position], -1)


start = torch.tensor([[2.0, 0.0]], dtype=torch.float64)
times = torch.linspace(0, 14, 500, dtype=torch.float64)
solution = ltnode.odesolve(oscillator, start, times, rtol=1e-4, atol=1e-4)
edges = torch.as_tensor(solution.grid, dtype=torch.float64)
at_edges = ltnode.odesolve(oscillator, start, edges, rtol=1e-10, atol=1e-10).states[
    :, 0, 0
]

fig, (left, right) = plt.subplots(1, 2, figsize=(6.8, 3.0), width_ratios=(1.5, 1))
left.plot(times, solution.states[:, 0, 0], color="C0", lw=1.2)
left.plot(edges, at_edges, "o", ms=3.2, color="C1", label="ends of steps")
left.set(xlabel="t", ylabel="position", ylim=(-2.4, 3.2))
left.legend(loc="upper right")

exact = ltnode.odesolve(
    oscillator, start, times, rtol=1e-11, atol=1e-11, max_steps=50_000
).states
for method in ("bosh3", "dopri5", "tsit5"):
    work, error = [], []
    for tolerance in 10.0 ** -torch.arange(2, 8):
        s = ltnode.odesolve(
            oscillator,
            start,
            times,
            rtol=float(tolerance),
            atol=float(tolerance),
            method=method,
            max_steps=50_000,
        )
        work.append(s.stats.n_evaluations)
        error.append(float((s.states - exact).abs().max()))
    right.loglog(work, error, "o-", ms=3, label=method)
right.set(
    xlabel="evaluations of the field", ylabel="largest error, dense output included"
)
right.set_xticks([300, 1000, 3000], ["300", "1000", "3000"])
right.minorticks_off()
right.legend()
plt.show()
print(f"{solution.stats}")

# %% [markdown]
# **What you should see.** Methods of order 5 need far fewer evaluations for small errors. For large ones, order 3 is as good.
#
# **Try next.** Raise the stiffness from 4 to 100: all methods here are explicit. [The solver](../../docs/solver.md) has the details.

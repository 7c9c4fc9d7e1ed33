// Log-densities of Gamma posteriors over the end-time, their divergence from the prior, and the derivatives of both, in float64.
//
// Formula: in x = log t the family is exponential, log q(x) = alpha x - beta e^x - log Z. On a window, Z and all expectations are
// integrals by Gauss-Legendre quadrature on the panels of ltnode.endtime.gamma.log_time_panels; without a window,
// log Z = lgamma(alpha) - alpha log(beta). For a prior p of the same family,
//     KL(q || p)   = (alpha - alpha_p) E[x] - (beta - beta_p) E[t] - log Z + log Z_p,
//     dKL / dalpha = (alpha - alpha_p) Var[x] - (beta - beta_p) Cov[x, t],
//     dKL / dbeta  = (beta - beta_p) Var[t] - (alpha - alpha_p) Cov[x, t],
//     d log q(t) / dalpha = log t - E[x],   d log q(t) / dbeta = E[t] - t.
//
// Shapes: alphas, betas (B,), times (S, B) or, if all posteriors share them, (S,), in float32. Outputs in float32; moments in
// float64.
//
// Work: forward, one block per posterior and one thread per quadrature node (PANELS * NODES of 128), then a loop over the
// end-times. Backward, one thread per posterior. Shared memory holds one value per thread for the tree reductions.
//
// Synchronisation: block barriers in `block_reduce`.
//
// Launched by gamma_posterior.py. Reference: ltnode.endtime.GammaDistribution; test:
// tests/accelerate/kernels/test_gamma_posterior.py.

#include "primitives.cuh"

namespace {

constexpr int PANELS = 12;
constexpr int NODES = 10;
constexpr int THREADS = 128;
constexpr double LOG_DROP = 40.0;
constexpr double STRETCH = 2.0;
constexpr double TINY = 2.2250738585072014e-308;

// Indices of ``limits``.
enum { LOW, HIGH, LOG_LOW, LOG_HIGH, SMALLEST_TIME, INFINITE };

// Combines one value per thread over the block; every thread gets the result.
template <typename Combine>
DEVICE double block_reduce(double* shared, double value, Combine combine) {
    shared[threadIdx.x] = value;
    block_barrier();
    for (int half = THREADS / 2; half > 0; half /= 2) {
        if (threadIdx.x < half) combine(shared[threadIdx.x], shared[threadIdx.x + half]);
        block_barrier();
    }
    double result = shared[0];
    block_barrier();
    return result;
}

DEVICE double block_sum(double* shared, double value) {
    return block_reduce(shared, value, [](double& a, const double& b) { a += b; });
}

DEVICE double block_max(double* shared, double value) {
    return block_reduce(shared, value, [](double& a, const double& b) { a = fmax(a, b); });
}

struct Panels {
    double base, first, last;

    // Finds both ends of the density, as log_time_panels does.
    DEVICE Panels(double alpha, double beta, double log_low, double log_high) {
        double peak = log(alpha) - log(beta);
        double best = fmin(fmax(0.0, log_low - peak), log_high - peak);
        double drop = expm1(best) - best + LOG_DROP / alpha;
        double slope = alpha * expm1(best);
        double right = fmin(sqrt(2 * drop), 1 + log1p(2 * drop));
        right = fmin(right, best + LOG_DROP / fmax(slope, TINY));
        double left = fmin(sqrt(2 * drop) + drop, LOG_DROP / fmax(-slope, TINY) - best);
        for (int i = 0; i < 2; i++) {
            double growth = expm1(right), decay = expm1(-left);
            right -= (growth - right - drop) / growth;
            left += (decay + left - drop) / decay;
        }
        double shift = fmin(log(alpha), 0.0);
        base = peak - shift;
        first = asinh((fmax(-left, log_low - peak) + shift) / STRETCH);
        last = asinh((fmin(right, log_high - peak) + shift) / STRETCH);
    }

    DEVICE double edge(int i) const { return base + STRETCH * sinh(first + (last - first) * (double(i) / PANELS)); }
};

// log t, with a floor that keeps its gradient finite.
DEVICE double log_time(float t, const double* limits) { return log(fmax(double(t), limits[SMALLEST_TIME])); }

DEVICE bool is_inside(float t, const double* limits) { return t >= float(limits[LOW]) && t <= float(limits[HIGH]); }

}  // namespace

// ``rule``: nodes and weights of the quadrature on (0, 1). The prior is given by alpha, beta and log Z.
// Outputs: log_q (S, B), kl (B,) and moments (B, 4), which are E[x], E[t], dKL / dalpha and dKL / dbeta.
extern "C" __global__ void __launch_bounds__(128)
    posterior_forward(const float* alphas, const float* betas, const float* times, int ends, int batch, int shared_times,
                      int truncated, const double* limits, const double* rule, const double* prior_alpha,
                      const double* prior_beta, const double* prior_log_z, float* log_q, float* kl, double* moments) {
    SHARED_MEMORY(memory);
    double* shared = reinterpret_cast<double*>(memory);
    const int b = blockIdx.x;
    const double alpha = alphas[b], beta = betas[b];
    const Panels panels(alpha, beta, limits[LOG_LOW], limits[LOG_HIGH]);

    double x = 0.0, t = 0.0, exponent = -limits[INFINITE];
    if (threadIdx.x < PANELS * NODES) {
        int panel = threadIdx.x / NODES, node = threadIdx.x % NODES;
        double left = panels.edge(panel), width = panels.edge(panel + 1) - left;
        x = left + width * rule[node];
        t = exp(x);
        exponent = alpha * x - beta * t + log(width * rule[NODES + node]);
    }
    const double largest = block_max(shared, exponent);
    const double mass = block_sum(shared, exp(exponent - largest));
    const double weight = exp(exponent - largest) / mass;
    const double log_z = truncated ? largest + log(mass) : lgamma(alpha) - alpha * log(beta);
    const double mean_x = block_sum(shared, weight * x), mean_t = block_sum(shared, weight * t);
    const double dx = x - mean_x, dt = t - mean_t;
    const double xx = block_sum(shared, weight * dx * dx), xt = block_sum(shared, weight * dx * dt);
    const double tt = block_sum(shared, weight * dt * dt);
    const double d_alpha = alpha - *prior_alpha, d_beta = beta - *prior_beta;
    if (threadIdx.x == 0) {
        kl[b] = float(fmax(d_alpha * mean_x - d_beta * mean_t - log_z + *prior_log_z, 0.0));
        moments[4 * b] = mean_x;
        moments[4 * b + 1] = mean_t;
        moments[4 * b + 2] = d_alpha * xx - d_beta * xt;
        moments[4 * b + 3] = d_beta * tt - d_alpha * xt;
    }
    for (int s = threadIdx.x; s < ends; s += THREADS) {
        float time = times[shared_times ? s : s * batch + b];
        double at = log_time(time, limits);
        bool inside = !truncated || is_inside(time, limits);
        log_q[s * batch + b] = inside ? float(alpha * at - beta * exp(at) - log_z - at) : float(-limits[INFINITE]);
    }
}

// Outputs: d_alphas and d_betas (B,), from the gradients of log_q and kl.
extern "C" __global__ void posterior_backward(const float* times, int ends, int batch, int shared_times, int truncated,
                                              const double* limits, const double* moments, const float* kl,
                                              const float* d_log_q, const float* d_kl, float* d_alphas, float* d_betas) {
    const int b = blockIdx.x * blockDim.x + threadIdx.x;
    if (b >= batch) return;
    // The minimum of the divergence is zero; the forward pass has clamped rounding errors below it.
    const double share = kl[b] > 0.0f ? double(d_kl[b]) : 0.0;
    double d_alpha = share * moments[4 * b + 2], d_beta = share * moments[4 * b + 3];
    for (int s = 0; s < ends; s++) {
        float time = times[shared_times ? s : s * batch + b];
        if (truncated && !is_inside(time, limits)) continue;
        double at = log_time(time, limits), d = d_log_q[s * batch + b];
        d_alpha += d * (at - moments[4 * b]);
        d_beta += d * (moments[4 * b + 1] - exp(at));
    }
    d_alphas[b] = float(d_alpha);
    d_betas[b] = float(d_beta);
}

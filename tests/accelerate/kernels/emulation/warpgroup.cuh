// The functions of the package's warpgroup.cuh on fibres.
//
// Stores and products happen as late as CUDA allows. Every other bulk load happens at once, the others when a thread waits for
// them: a kernel that reads too early finds the old contents, and one that loads too early destroys data that is still needed.

typedef unsigned long long Mbarrier;
#define SET_REGISTERS(change, number)

static inline void bulk_store(void* to, const void* from, int bytes) {
    std::memset(to, 0xff, bytes);  // NaN, in case nobody waits for the store
    emulation::fibres[threadIdx.x].stores.push_back({to, from, bytes});
}
static inline void bulk_store_commit() {}
static inline void bulk_store_wait() {
    auto& stores = emulation::fibres[threadIdx.x].stores;
    for (auto& store : stores) std::memcpy(store.to, store.from, store.bytes);
    stores.clear();
}

static inline void mbarrier_init(Mbarrier* barrier, int arrivals) {
    auto& phase = emulation::phases[barrier];
    phase.arrivals = phase.missing = arrivals;
}
static inline void changed(emulation::Phase& phase) {
    if (phase.missing == 0 && phase.bytes == 0) {
        phase.completed++;
        phase.missing = phase.arrivals;
    }
    phase.change.generation++;
}
static inline void mbarrier_expect(Mbarrier* barrier, int bytes) {
    auto& phase = emulation::phases[barrier];
    phase.missing--;
    phase.bytes += bytes;
    changed(phase);
}
static inline void mbarrier_arrive(Mbarrier* barrier) { mbarrier_expect(barrier, 0); }
static inline void bulk_load(void* to, const void* from, int bytes, Mbarrier* barrier) {
    auto& phase = emulation::phases[barrier];
    phase.pending.push_back({to, from, bytes});
    if (emulation::loads++ % 2) {
        std::memcpy(to, from, bytes);
        phase.bytes -= bytes;
        phase.pending.pop_back();
    }
    changed(phase);
}
static inline void mbarrier_wait(Mbarrier* barrier, int number) {
    auto& phase = emulation::phases[barrier];
    while (phase.completed % 2 == unsigned(number) % 2) {
        for (auto& copy : phase.pending) {
            std::memcpy(copy.to, copy.from, copy.bytes);
            phase.bytes -= copy.bytes;
        }
        bool some = !phase.pending.empty();
        phase.pending.clear();
        if (some) changed(phase);
        else emulation::meet(phase.change, 1 << 30, [] {});
    }
}

using emulation::Descriptor;
static inline Descriptor descriptor(const char* first, int chunk) { return {first, chunk, 128, false}; }
static inline Descriptor descriptor_transposed(const char* first, int chunk, int eight) { return {first, chunk, eight, true}; }
static inline Descriptor advance(Descriptor from, int bytes) {
    return {from.first + bytes, from.chunk, from.eight, from.transposed};
}
static inline void wgmma_fence() {}
static inline void fence_async_proxy() {}
static inline void wgmma_commit() {}
template <int N>
static inline void wgmma(float (&d)[N][4], Descriptor a, Descriptor b) {
    emulation::fibres[threadIdx.x].products.push_back({{}, false, a, b, d});
}
template <int N>
static inline void wgmma_transposed(float (&d)[N][4], Descriptor a, Descriptor b) { wgmma(d, a, b); }
template <int N>
static inline void wgmma_transposed(float (&d)[N][4], const unsigned (&a)[4], Descriptor b) {
    auto& w = emulation::warp();
    int lane = emulation::lane();
    std::memcpy(&w.a[lane], a, 16);
    emulation::meet(w.meeting, 32, [&] {
        for (int i = 0; i < 32; i++)
            for (int k = 0; k < 16; k++)
                for (int half = 0; half < 2; half++) {
                    const uint4& owner = w.a[i / 4 * 4 + k % 8 / 2];
                    const unsigned regs[4] = {owner.x, owner.y, owner.z, owner.w};
                    w.left[i][half][k] = emulation::half_value(regs[half + 2 * (k / 8)], k % 2);
                }
    });
    emulation::Product product = {{}, true, {}, b, d};
    std::memcpy(product.left, w.left[lane], sizeof product.left);
    emulation::fibres[threadIdx.x].products.push_back(product);
}
// Each thread computes its own part of the pending products.
template <int N>
static inline void wgmma_wait(float (&d)[N][4]) {
    auto& products = emulation::fibres[threadIdx.x].products;
    int lane = emulation::lane();
    for (auto& product : products)
        for (int row = 0; row < N && product.d == d; row++)
            for (int q = 0; q < 4; q++) {
                float sum = 0.0f;
                for (int k = 0; k < 16; k++)
                    sum += product.factor(q / 2, k) * product.b.at(8 * row + 2 * (lane % 4) + q % 2, k);
                d[row][q] += sum;
            }
    auto computed = [&](auto& product) { return product.d == d; };
    products.erase(std::remove_if(products.begin(), products.end(), computed), products.end());
}
template <int N>
static inline void wgmma_wait_but_last(float (&d)[N][4]) { wgmma_wait(d); }
template <int N>
static inline void keep_registers(unsigned (&)[N][4]) {}

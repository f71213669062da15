// A block of a small convolutional network in evaluation: convolution, batch norm by its running statistics,
// ReLU, 2x2 max pooling; on one thread, without gradients.
//
// Compiled for one shape (see conv_block.py): REAL, C, H, W (input), O (output channels), K (kernel), NORM.
// Stride 1, no padding. As many images as a vector has lanes are computed at once, one per lane, so that no
// lane is wasted at the end of a row and pooling is the maximum of four registers.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <vector>

using real = REAL;

namespace {

constexpr int HP = (H - K + 1) / 2, WP = (W - K + 1) / 2;  // after pooling
constexpr int IN = C * H * W, OUT = O * HP * WP, TAPS = C * K * K;

#if defined(__AVX512F__)
constexpr int V = 64 / sizeof(real), REGISTERS = 32;
#elif defined(__AVX__)
constexpr int V = 32 / sizeof(real), REGISTERS = 16;
#else
constexpr int V = 16 / sizeof(real), REGISTERS = 16;
#endif
typedef real vec __attribute__((vector_size(V * sizeof(real)), aligned(alignof(real)), may_alias));
typedef std::conditional_t<sizeof(real) == 4, std::int32_t, std::int64_t> integer;
typedef integer lane __attribute__((vector_size(V * sizeof(real))));

inline vec load(const real* p) { return *reinterpret_cast<const vec*>(p); }
inline void store(real* p, vec v) { *reinterpret_cast<vec*>(p) = v; }
inline vec all(real x) { return x - vec{}; }  // unlike x + 0, no operation, also for a negative zero
inline vec greater(vec x, vec y) { return (x > y) | (x != x) ? x : y; }  // NaN wins, as in torch

// V vectors of V numbers to their transpose.
inline void transpose(vec (&a)[V]) {
    lane low, high;
    for (int i = 0; i < V; i++) {
        low[i] = i / 2 + i % 2 * V;
        high[i] = V / 2 + i / 2 + i % 2 * V;
    }
#pragma GCC unroll 4
    for (int stage = 1; stage < V; stage *= 2) {
        vec b[V];
#pragma GCC unroll 16
        for (int i = 0; i < V / 2; i++) {
            b[2 * i] = __builtin_shuffle(a[i], a[i + V / 2], low);
            b[2 * i + 1] = __builtin_shuffle(a[i], a[i + V / 2], high);
        }
#pragma GCC unroll 16
        for (int i = 0; i < V; i++) a[i] = b[i];
    }
}

// Output channels at once: a sum for each of them and each of the four positions of a pooling window.
constexpr int MOST = (REGISTERS - 4) / 4;
constexpr int rows_from(int o) { return O - o == MOST + 1 ? (MOST + 1) / 2 : std::min(O - o, MOST); }

// The results of ROWS output channels at one pooled position.
template <int ROWS>
inline void window(const real* from, const real* w, const real* bias, real* to) {
    vec total[ROWS][4];
    for (int r = 0; r < ROWS; r++)
        for (int j = 0; j < 4; j++) total[r][j] = all(bias[r]);
    for (int c = 0; c < C; c++, from += H * W * V)
        for (int ky = 0; ky < K; ky++) {
#pragma GCC unroll 1
            for (int kx = 0; kx < K; kx++, w += ROWS) {
                const real* x = from + (ky * W + kx) * V;
                // Hidden from the compiler: it would keep pixels for the next tap, and spill sums for them.
                asm("" : "+r"(x));
                vec weight[ROWS];
#pragma GCC unroll 8
                for (int r = 0; r < ROWS; r++) weight[r] = all(w[r]);
#pragma GCC unroll 4
                for (int j = 0; j < 4; j++) {
                    const vec pixel = load(x + (j / 2 * W + j % 2) * V);
#pragma GCC unroll 8
                    for (int r = 0; r < ROWS; r++) total[r][j] += pixel * weight[r];
                }
            }
        }
    for (int r = 0; r < ROWS; r++) {
        const vec most = greater(greater(total[r][0], total[r][1]), greater(total[r][2], total[r][3]));
        store(to + r * HP * WP * V, most < 0 ? vec{} : most);
    }
}

// A row of pooled results, for all output channels from FIRST on.
template <int FIRST>
inline void rows(const real* from, const real* w, const real* bias, real* to) {
    if constexpr (FIRST < O) {
        constexpr int ROWS = rows_from(FIRST);
        for (int x = 0; x < WP; x++)
            window<ROWS>(from + 2 * x * V, w + FIRST * TAPS, bias + FIRST, to + (FIRST * HP * WP + x) * V);
        rows<FIRST + ROWS>(from, w, bias, to);
    }
}

// The weights in the order in which `rows` reads them, each channel times its scale.
template <int FIRST>
inline void arrange(const real* w, const real* scale, real* to) {
    if constexpr (FIRST < O) {
        constexpr int ROWS = rows_from(FIRST);
        for (int tap = 0; tap < TAPS; tap++)
            for (int r = 0; r < ROWS; r++) *to++ = w[(FIRST + r) * TAPS + tap] * scale[r];
        arrange<FIRST + ROWS>(w, scale + ROWS, to);
    }
}

// Numbers of up to V images, one after another, to lanes.
inline void gather(const real* from, int length, int count, real* to) {
    const auto image = [=](int i) { return from + std::ptrdiff_t(std::min(i, count - 1)) * length; };
    int p = 0;
    for (; p + V <= length; p += V) {
        vec a[V];
#pragma GCC unroll 16
        for (int i = 0; i < V; i++) a[i] = load(image(i) + p);
        transpose(a);
#pragma GCC unroll 16
        for (int i = 0; i < V; i++) store(to + (p + i) * V, a[i]);
    }
    for (; p < length; p++)
        for (int i = 0; i < V; i++) to[p * V + i] = image(i)[p];
}

// And back.
inline void scatter(const real* from, int length, int count, real* to) {
    int p = 0;
    for (; p + V <= length; p += V) {
        vec a[V];
#pragma GCC unroll 16
        for (int i = 0; i < V; i++) a[i] = load(from + (p + i) * V);
        transpose(a);
#pragma GCC unroll 16
        for (int i = 0; i < V; i++)
            if (i < count) store(to + std::ptrdiff_t(i) * length + p, a[i]);
    }
    for (; p < length; p++)
        for (int i = 0; i < count; i++) to[std::ptrdiff_t(i) * length + p] = from[p * V + i];
}

}  // namespace

extern "C" void infer(const real* x, const real* w, const real* bias, const real* gamma, const real* beta,
                      const real* running_mean, const real* running_var, double eps, real* out, int n) {
    static thread_local std::vector<real> images(IN * V), results(OUT * V), weights(O * TAPS);
    real scale[O], shift[O];
    for (int o = 0; o < O; o++) {
        scale[o] = NORM ? gamma[o] / std::sqrt(running_var[o] + real(eps)) : real(1);
        shift[o] = NORM ? (bias[o] - running_mean[o]) * scale[o] + beta[o] : bias[o];
    }
    arrange<0>(w, scale, weights.data());
    for (int first = 0; first < n; first += V) {
        const int count = std::min(V, n - first);
        gather(x + std::ptrdiff_t(first) * IN, IN, count, images.data());
        for (int y = 0; y < HP; y++)
            rows<0>(images.data() + 2 * y * W * V, weights.data(), shift, results.data() + y * WP * V);
        scatter(results.data(), OUT, count, out + std::ptrdiff_t(first) * OUT);
    }
}

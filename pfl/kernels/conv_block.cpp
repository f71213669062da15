// A block of a small convolutional network on one thread: convolution, batch norm, ReLU, 2x2 max pooling.
//
// Compiled for one shape (see conv_block.py): REAL, C, H, W (input), O (output channels), K (kernel), NORM.
// Stride 1, no padding. Planes are walked as if rows had no end: position p = y * W + x, and a tap of the
// kernel is a constant offset, so that every load is of consecutive numbers. The K - 1 positions at the end of
// a row that are no result are called its margin.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <vector>

using real = REAL;

namespace {

constexpr int HO = H - K + 1, WO = W - K + 1;      // of the convolution
constexpr int HP = HO / 2, WP = WO / 2;            // after pooling
constexpr int L = (HO - 1) * W + WO;               // positions from the first result to the last
constexpr int Z = HO * W;                          // of a plane of results, margins included
constexpr int FRONT = (K - 1) * (W + 1);           // zeros before a plane of gradients: the largest offset
constexpr int G = FRONT + H * W;                   // of a plane of gradients

#if defined(__AVX512F__)
constexpr int NATIVE = 64, REGISTERS = 32;
#elif defined(__AVX__)
constexpr int NATIVE = 32, REGISTERS = 16;
#else
constexpr int NATIVE = 16, REGISTERS = 16;
#endif

constexpr int lanes_within(int length) {
    int lanes = NATIVE / sizeof(real);
    while (lanes > length) lanes /= 2;
    return lanes;
}
constexpr int V = lanes_within(L);
typedef real vec __attribute__((vector_size(V * sizeof(real)), aligned(alignof(real)), may_alias));

inline vec load(const real* p) { return *reinterpret_cast<const vec*>(p); }
inline void store(real* p, vec v) { *reinterpret_cast<vec*>(p) = v; }
inline real sum(vec v) {
    real total = 0;
    for (int i = 0; i < V; i++) total += v[i];
    return total;
}

// The vectors that cover ``length`` positions; the last one is moved back to end at the last position.
constexpr int vectors(int length) { return (length + V - 1) / V; }
constexpr int position(int vector, int length) { return vector * V < length - V ? vector * V : length - V; }

// to[row][p] = bias[row] + sum over planes i and taps of from[i][p + sign * offset] * weight(row, i, tap),
// for ROWS rows of results and COLUMNS vectors of positions from ``first`` on.
template <int ROWS, int COLUMNS, int PLANES, int LENGTH, int SIGN>
inline void correlate(const real* from, std::ptrdiff_t plane, const real* w, std::ptrdiff_t w_row,
                      std::ptrdiff_t w_plane, const real* bias, real* to, std::ptrdiff_t to_row, int first) {
    int at[COLUMNS];
    vec total[ROWS][COLUMNS];
    for (int j = 0; j < COLUMNS; j++) at[j] = position(first + j, LENGTH);
    for (int r = 0; r < ROWS; r++)
        for (int j = 0; j < COLUMNS; j++) total[r][j] = vec{} + (bias ? bias[r] : real(0));
    for (int i = 0; i < PLANES; i++, from += plane, w += w_plane)
        for (int ky = 0; ky < K; ky++)
#pragma GCC unroll 8
            for (int kx = 0; kx < K; kx++) {
                const real* tapped = from + SIGN * (ky * W + kx);
                vec x[COLUMNS];
#pragma GCC unroll 8
                for (int j = 0; j < COLUMNS; j++) x[j] = load(tapped + at[j]);
#pragma GCC unroll 8
                for (int r = 0; r < ROWS; r++) {
                    const vec weight = vec{} + w[r * w_row + ky * K + kx];
#pragma GCC unroll 8
                    for (int j = 0; j < COLUMNS; j++) total[r][j] += x[j] * weight;
                }
            }
    for (int r = 0; r < ROWS; r++)
        for (int j = 0; j < COLUMNS; j++) store(to + r * to_row + at[j], total[r][j]);
}

// As many rows and columns at once as there are registers for their sums.
constexpr int rows_at_once(int rows) { return rows % 6 == 0 ? 6 : rows % 8 == 0 ? REGISTERS / 4 : std::min(rows, 6); }
constexpr int columns_at_once(int rows) { return std::max(1, (REGISTERS - REGISTERS / 4) / rows); }

template <int ROWS, int PLANES, int LENGTH, int SIGN>
inline void correlate_plane(const real* from, std::ptrdiff_t plane, const real* w, std::ptrdiff_t w_row,
                            std::ptrdiff_t w_plane, const real* bias, real* to, std::ptrdiff_t to_row) {
    constexpr int COLUMNS = columns_at_once(ROWS), ALL = vectors(LENGTH), REST = ALL % COLUMNS;
    int j = 0;
    for (; j + COLUMNS <= ALL; j += COLUMNS)
        correlate<ROWS, COLUMNS, PLANES, LENGTH, SIGN>(from, plane, w, w_row, w_plane, bias, to, to_row, j);
    if constexpr (REST > 0)
        correlate<ROWS, REST, PLANES, LENGTH, SIGN>(from, plane, w, w_row, w_plane, bias, to, to_row, j);
}

template <int ALL_ROWS, int PLANES, int LENGTH, int SIGN>
inline void correlate_image(const real* from, std::ptrdiff_t plane, const real* w, std::ptrdiff_t w_row,
                            std::ptrdiff_t w_plane, const real* bias, real* to, std::ptrdiff_t to_row) {
    constexpr int ROWS = rows_at_once(ALL_ROWS), REST = ALL_ROWS % ROWS;
    int r = 0;
    for (; r + ROWS <= ALL_ROWS; r += ROWS)
        correlate_plane<ROWS, PLANES, LENGTH, SIGN>(from, plane, w + r * w_row, w_row, w_plane,
                                                    bias ? bias + r : nullptr, to + r * to_row, to_row);
    if constexpr (REST > 0)
        correlate_plane<REST, PLANES, LENGTH, SIGN>(from, plane, w + r * w_row, w_row, w_plane,
                                                    bias ? bias + r : nullptr, to + r * to_row, to_row);
}

// Output channels at once: as many as there are registers for the sums of all kx.
constexpr int rows_of_gradients() {
    int rows = std::max(1, std::min(O, REGISTERS / K));
    while (O % rows) rows--;
    return rows;
}

// Adds one image's part of dw[o][c][ky][kx], for ROWS output channels and all kx, to ``totals``.
template <int ROWS>
inline void weight_gradient(const real* x, const real* dz, vec* totals) {
    constexpr int ALL = vectors(L), LAST = position(ALL - 1, L), DONE = (ALL - 1) * V - LAST;
    vec fresh{};  // of the last vector, what the one before has not counted
    for (int i = 0; i < V; i++) fresh[i] = i >= DONE;
    vec total[ROWS][K];
    for (int r = 0; r < ROWS; r++)
        for (int kx = 0; kx < K; kx++) total[r][kx] = totals[r * K + kx];
    for (int p = 0; p < (ALL - 1) * V; p += V) {
        vec g[ROWS];
#pragma GCC unroll 8
        for (int r = 0; r < ROWS; r++) g[r] = load(dz + r * G + p);
#pragma GCC unroll 8
        for (int kx = 0; kx < K; kx++) {
            const vec value = load(x + p + kx);
#pragma GCC unroll 8
            for (int r = 0; r < ROWS; r++) total[r][kx] += value * g[r];
        }
    }
    for (int r = 0; r < ROWS; r++) {
        const vec g = load(dz + r * G + LAST) * fresh;
        for (int kx = 0; kx < K; kx++) totals[r * K + kx] = total[r][kx] + load(x + LAST + kx) * g;
    }
}

template <int ROWS>
inline void weight_gradients(const real* x, const real* dz, real* dw, int n) {
    vec totals[C][K][ROWS * K] = {};
    for (int image = 0; image < n; image++)
        for (int c = 0; c < C; c++)
            for (int ky = 0; ky < K; ky++)
                weight_gradient<ROWS>(x + (image * C + c) * H * W + ky * W, dz + image * O * G, totals[c][ky]);
    for (int r = 0; r < ROWS; r++)
        for (int c = 0; c < C; c++)
            for (int ky = 0; ky < K; ky++)
                for (int kx = 0; kx < K; kx++)
                    dw[((r * C + c) * K + ky) * K + kx] = sum(totals[c][ky][r * K + kx]);
}

// Pooling: V results at a time, out of 2 V columns of two rows.

constexpr int CHUNKS = (WP + V - 1) / V;
constexpr int in_chunk(int chunk) { return std::min(V, WP - chunk * V); }

inline vec part(const real* p, int count) {
    real whole[V] = {};
    std::memcpy(whole, p, count * sizeof(real));
    return load(whole);
}

typedef std::conditional_t<sizeof(real) == 4, std::int32_t, std::int64_t> integer;
typedef integer lane __attribute__((vector_size(V * sizeof(real))));

template <int START, int STEP>
inline lane lanes() {
    lane indices;
    for (int i = 0; i < V; i++) indices[i] = START + STEP * i;
    return indices;
}

// The four values that each of V results is the largest of.
struct Window {
    vec a, b, c, d;
    explicit Window(const real* row) {
        const vec top[2] = {load(row), load(row + V)}, bottom[2] = {load(row + W), load(row + W + V)};
        const lane even = lanes<0, 2>(), odd = lanes<1, 2>();
        a = __builtin_shuffle(top[0], top[1], even);
        b = __builtin_shuffle(top[0], top[1], odd);
        c = __builtin_shuffle(bottom[0], bottom[1], even);
        d = __builtin_shuffle(bottom[0], bottom[1], odd);
    }
    vec largest() const { return greater(greater(a, b), greater(c, d)); }
    vec smallest() const { return -greater(greater(-a, -b), greater(-c, -d)); }
    static vec greater(vec x, vec y) { return (x > y) | (x != x) ? x : y; }  // NaN wins, as in torch
};

// Put two rows of 2 * count columns where they came from.
inline void put(real* to, vec a, vec b, vec c, vec d, int count) {
    real row[4 * V];
    lane low, high;
    for (int i = 0; i < V; i++) {
        low[i] = i / 2 + i % 2 * V;
        high[i] = V / 2 + i / 2 + i % 2 * V;
    }
    store(row, __builtin_shuffle(a, b, low));
    store(row + V, __builtin_shuffle(a, b, high));
    store(row + 2 * V, __builtin_shuffle(c, d, low));
    store(row + 3 * V, __builtin_shuffle(c, d, high));
    std::memcpy(to, row, 2 * count * sizeof(real));
    std::memcpy(to + W, row + 2 * V, 2 * count * sizeof(real));
}

}  // namespace

extern "C" {

// z: (n, O, HO, W) the convolution, margins undefined. scale, shift (O): what z is multiplied with and added
// to before the ReLU. mean, deviation (O): of z, and the inverse of its standard deviation.
// With ``training`` the moments are the batch's and the running ones move; else they are the running ones.
void forward(const real* x, const real* w, const real* bias, const real* gamma, const real* beta,
             real* running_mean, real* running_var, double momentum, double eps, int training, real* z,
             real* moments, real* out, int n) {
    for (int image = 0; image < n; image++)
        correlate_image<O, C, L, 1>(x + image * C * H * W, H * W, w, C * K * K, K * K, bias,
                                    z + image * O * Z, Z);
    for (int o = 0; o < O; o++) {
        real scale = 1, shift = 0;
        if (NORM) {
            real mean, variance;
            if (training) {
                const real count = real(n) * HO * WO;
                real column[WO] = {};
                for (int image = 0; image < n; image++)
                    for (int y = 0; y < HO; y++) {
                        const real* row = z + (image * O + o) * Z + y * W;
                        for (int i = 0; i < WO; i++) column[i] += row[i];
                    }
                mean = 0;
                for (int i = 0; i < WO; i++) mean += column[i];
                mean /= count;
                std::fill(column, column + WO, real(0));
                for (int image = 0; image < n; image++)
                    for (int y = 0; y < HO; y++) {
                        const real* row = z + (image * O + o) * Z + y * W;
                        for (int i = 0; i < WO; i++) column[i] += (row[i] - mean) * (row[i] - mean);
                    }
                variance = 0;
                for (int i = 0; i < WO; i++) variance += column[i];
                running_mean[o] += real(momentum) * (mean - running_mean[o]);
                running_var[o] += real(momentum) * (variance / (count - 1) - running_var[o]);
                variance /= count;
            } else {
                mean = running_mean[o];
                variance = running_var[o];
            }
            const real deviation = 1 / std::sqrt(variance + real(eps));
            moments[o] = mean;
            moments[O + o] = deviation;
            scale = gamma[o] * deviation;
            shift = beta[o] - mean * scale;
        }
        // Scaling keeps or turns the order: the largest after it is the largest or the smallest before.
        for (int image = 0; image < n; image++)
            for (int y = 0; y < HP; y++) {
                const real* row = z + (image * O + o) * Z + 2 * y * W;
                real* to = out + ((image * O + o) * HP + y) * WP;
#pragma GCC unroll 8
                for (int chunk = 0; chunk < CHUNKS; chunk++) {
                    const Window window(row + 2 * V * chunk);
                    const vec value = (scale < 0 ? window.smallest() : window.largest()) * scale + shift;
                    const vec positive = value < 0 ? vec{} : value;
                    std::memcpy(to + V * chunk, &positive, in_chunk(chunk) * sizeof(real));
                }
            }
    }
}

// Gradients of everything, given those of ``out``; dx may be null.
void backward(const real* dout, const real* x, const real* w, const real* gamma, const real* z,
              const real* moments, const real* out, int training, real* dx, real* dw, real* dbias,
              real* dgamma, real* dbeta, int n) {
    static thread_local std::vector<real> scratch;  // margins and fronts are zero, and stay so
    if (scratch.size() < std::size_t(n) * O * G + FRONT + V) scratch.assign(std::size_t(n) * O * G + FRONT + V, 0);
    real* dz = scratch.data() + FRONT;  // (n, O, G), each plane behind its front
    for (int o = 0; o < O; o++) {
        real mean = 0, deviation = 1, scale = 1, constant = 0, linear = 0;
        const real count = real(n) * HO * WO;
        if (NORM) {
            mean = moments[o];
            deviation = moments[O + o];
            scale = gamma[o] * deviation;
        }
        if (NORM) {
            vec sums{}, products{};
            for (int image = 0; image < n; image++)
                for (int y = 0; y < HP; y++) {
                    const real* row = z + (image * O + o) * Z + 2 * y * W;
                    const std::ptrdiff_t at = ((image * O + o) * HP + y) * WP;
#pragma GCC unroll 8
                    for (int chunk = 0; chunk < CHUNKS; chunk++) {
                        const Window window(row + 2 * V * chunk);
                        const vec value = part(out + at + V * chunk, in_chunk(chunk));
                        const vec passed = value > 0 ? part(dout + at + V * chunk, in_chunk(chunk)) : vec{};
                        const vec best = scale < 0 ? window.smallest() : window.largest();
                        sums += passed;
                        products += value > 0 ? passed * (best - mean) : vec{};
                    }
                }
            const real total = sum(sums), product = sum(products) * deviation;
            dbeta[o] = total;
            dgamma[o] = product;
            if (training) {
                linear = -scale * product * deviation / count;
                constant = -scale * total / count - linear * mean;
            }
        }
        real columns[WO] = {};
        for (int image = 0; image < n; image++) {
            real* plane = dz + (image * O + o) * G;
            for (int y = 0; y < HP; y++) {
                const real* row = z + (image * O + o) * Z + 2 * y * W;
                const std::ptrdiff_t at = ((image * O + o) * HP + y) * WP;
                real* to = plane + 2 * y * W;
#pragma GCC unroll 8
                for (int chunk = 0; chunk < CHUNKS; chunk++) {
                    const Window window(row + 2 * V * chunk);
                    const vec value = part(out + at + V * chunk, in_chunk(chunk));
                    const vec g = part(dout + at + V * chunk, in_chunk(chunk));
                    const vec passed = value > 0 ? g * scale : vec{};
                    const vec best = scale < 0 ? window.smallest() : window.largest();
                    // The first of equals takes the gradient, as in torch.
                    const vec to_a = window.a == best ? passed : vec{}, not_a = passed - to_a;
                    const vec to_b = window.b == best ? not_a : vec{}, not_b = not_a - to_b;
                    const vec to_c = window.c == best ? not_b : vec{}, to_d = not_b - to_c;
                    put(to + 2 * V * chunk, constant + linear * window.a + to_a,
                        constant + linear * window.b + to_b, constant + linear * window.c + to_c,
                        constant + linear * window.d + to_d, in_chunk(chunk));
                }
                if (WO % 2)
                    for (int below = 0; below < 2; below++)
                        to[below * W + WO - 1] = constant + linear * row[below * W + WO - 1];
            }
            if (HO % 2) {
                const real* row = z + (image * O + o) * Z + (HO - 1) * W;
                for (int i = 0; i < WO; i++) plane[(HO - 1) * W + i] = constant + linear * row[i];
            }
            for (int y = 0; y < HO; y++)
                for (int i = 0; i < WO; i++) columns[i] += plane[y * W + i];
        }
        dbias[o] = 0;
        for (int i = 0; i < WO; i++) dbias[o] += columns[i];
    }
    constexpr int ROWS = rows_of_gradients();
    for (int o = 0; o < O; o += ROWS)
        weight_gradients<ROWS>(x, dz + o * G, dw + o * C * K * K, n);
    if (dx)
        for (int image = 0; image < n; image++)
            correlate_image<C, O, H * W, -1>(dz + image * O * G, G, w, K * K, C * K * K, nullptr,
                                             dx + image * C * H * W, H * W);
}
}

// A block of a convolutional network on one thread: convolution, batch norm, sum, ReLU and max pooling.
//
// Lanes are images: LANES of them form a bundle, and a pixel of a plane holds the values of a bundle's images. So,
// whatever the shape, no load crosses pixels, no lane is idle, and taps outside the image are skipped.
// Weight gradients of many planes are matrix products, with output planes as lanes.
// The last bundle may be partly filled; its unused lanes are zero in gradients and never read elsewhere.
// Compiled for one floating-point type, REAL; with BF16, images and gradients are bfloat16 and sums are float.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>
#ifdef BF16
#include <immintrin.h>
#endif

#include "planes.h"

using real = REAL;  // type of sums, weights and their gradients
#ifdef BF16
struct stored {  // type of images and their gradients
    std::uint16_t bits;
};
#else
using stored = real;
#endif

namespace {

#if defined(__AVX512F__)
constexpr int NATIVE = 64, REGISTERS = 32;
#else
constexpr int NATIVE = 32, REGISTERS = 16;
#endif

constexpr int V = NATIVE / sizeof(real), LANES = 2 * V;
typedef real vec __attribute__((vector_size(NATIVE), aligned(alignof(real)), may_alias));

inline vec load(const real* p) { return *reinterpret_cast<const vec*>(p); }
inline void store(real* p, vec v) { *reinterpret_cast<vec*>(p) = v; }
inline vec all(real value) { return value - vec{}; }  // not vec{} + value, as 0 + -0 is 0

// Keeps ``v`` in a register: compilers would reload it for every use.
inline vec held(vec v) {
    asm volatile("" : "+x"(v));
    return v;
}
inline vec load_some(const real* p, int count) {
    vec v{};
    std::memcpy(&v, p, count * sizeof(real));
    return v;
}

// A factor of a product; a register holds V of them. In bfloat16, it is a pair of values, whose products are summed.
#ifdef BF16
typedef std::uint32_t factor;
typedef factor factors __attribute__((vector_size(NATIVE), aligned(alignof(factor)), may_alias));
constexpr int PAIR = 2;

inline vec load(const stored* p) {
    const __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    return vec(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16));
}
inline vec load_some(const stored* p, int count) {
    stored numbers[V] = {};
    std::memcpy(numbers, p, count * sizeof(stored));
    return load(numbers);
}
inline __m256i narrowed(vec v) { return __m256i(_mm512_cvtneps_pbh(__m512(v))); }
inline void store(stored* p, vec v) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), narrowed(v)); }
inline vec rounded(vec v) { return vec(_mm512_slli_epi32(_mm512_cvtepu16_epi32(narrowed(v)), 16)); }

inline factors load(const factor* p) { return *reinterpret_cast<const factors*>(p); }
inline factors all(factor value) { return value - factors{}; }
inline factors held(factors v) {
    asm volatile("" : "+x"(v));
    return v;
}
inline vec with_product(vec sum, factors a, factors b) {
    return vec(_mm512_dpbf16_ps(__m512(sum), __m512bh(a), __m512bh(b)));
}
inline factor narrowed(real value) {
    return _mm_cvtsi128_si32(__m128i(_mm_cvtneps_pbh(_mm_set_ss(value)))) & 0xffff;
}
inline factor paired(real first, real second) { return narrowed(first) | narrowed(second) << 16; }
// All images of a bundle, or those of the first half.
template <int HALVES>
inline factors images(const stored* p, int) {
    if constexpr (HALVES == 2)
        return load(reinterpret_cast<const factor*>(p));
    else
        return factors(_mm512_zextsi256_si512(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))));
}
#else
typedef real factor;
typedef vec factors;
constexpr int PAIR = 1;

inline vec rounded(vec v) { return v; }
inline vec with_product(vec sum, factors a, factors b) { return sum + a * b; }
inline factor paired(real first, real) { return first; }
// The images of half a bundle.
template <int HALVES>
inline factors images(const stored* p, int half) {
    return load(p + half * V);
}
#endif
#define UNROLLED _Pragma("GCC unroll 16")
#define OWN_REGISTERS __attribute__((noinline))  // inside a larger function, sums would be spilled

// Values of a plane. The pixels are an odd number, as planes a power of two apart compete for the same cache lines.
inline size plane(int height, int width) { return size(height * width | 1) * LANES; }

// Calls ``work(offset, half)`` for both halves of a bundle, at each of ``pixels``.
template <class Work>
inline void each_vector(int pixels, Work work) {
    for (size at = 0; at < size(pixels) * LANES; at += LANES) {
        work(at, 0);
        work(at + V, 1);
    }
}

struct Sizes : Planes {
    size in, out, pooled;  // values of a plane of the input, of the convolution, of the result
    explicit Sizes(const Shape& shape)
        : Planes(shape), in(plane(height, width)), out(plane(rows, columns)), pooled(plane(pooled_rows, pooled_columns)) {}
};

// The input pixel under a tap, at a position of the convolution.
inline size source(const Shape& s, int y, int x, int ky, int kx) {
    return size(y * s.stride + ky - s.padding) * s.width + x * s.stride + kx - s.padding;
}

// Maximum number of output planes at a time: registers hold the sums of a bundle for each.
constexpr int MOST_ROWS = (REGISTERS - REGISTERS / 4) / 2;

// Size of the tile ``number`` if ``all`` are divided evenly into the fewest tiles of at most ``most``.
inline int of_tile(int all, int most, int number) {
    const int tiles = (all + most - 1) / most;
    return number < tiles ? all / tiles + (number < all % tiles) : 0;
}

constexpr int FIRST_LEVEL = 24 << 10;  // bytes of the L1 cache for data that are reused

struct Correlation {
    const factor *from, *w;  // images of the bundle; weights (planes, kernel, kernel, ROWS)
    int planes, width, kernel, step;
    size from_plane, to_plane;
    bool begun;  // the results hold sums over earlier planes
};

// A pixel of ROWS output planes: sums over planes and taps, for all images of a bundle or the first half.
template <int ROWS, int HALVES>
OWN_REGISTERS void correlate(const Correlation& c, Span ys, Span xs, const real* bias, stored* to) {
    vec total[ROWS][HALVES];
    UNROLLED for (int r = 0; r < ROWS; r++)
        UNROLLED for (int h = 0; h < HALVES; h++)
            total[r][h] = c.begun ? load(to + r * c.to_plane + h * V) : all(bias ? bias[r] : 0);
    const factor* from = c.from + size(ys.source * c.width + xs.source) * LANES;
    const factor* w = c.w + (ys.tap * c.kernel + xs.tap) * ROWS;
    const size from_row = c.width * LANES, w_row = c.step * c.kernel * ROWS, w_plane = c.kernel * c.kernel * ROWS;
    const size w_tap = c.step * ROWS, from_plane = c.from_plane;
    for (int i = 0; i < c.planes; i++, from += from_plane, w += w_plane)
        for (int y = 0; y < ys.count; y++) {
            const factor *x = from + y * from_row, *end = x + xs.count * LANES, *tap = w + y * w_row;
            for (; x < end; x += LANES, tap += w_tap) {
                factors value[HALVES];
                UNROLLED for (int h = 0; h < HALVES; h++) value[h] = held(load(x + h * V));
                UNROLLED for (int r = 0; r < ROWS; r++) {
                    const factors weight = held(all(tap[r]));
                    UNROLLED for (int h = 0; h < HALVES; h++) total[r][h] = with_product(total[r][h], value[h], weight);
                }
            }
        }
    UNROLLED for (int r = 0; r < ROWS; r++)
        UNROLLED for (int h = 0; h < HALVES; h++) store(to + r * c.to_plane + h * V, total[r][h]);
}

// Calls ``work.template operator()<n>()`` for an n in [1, MOST] that is known at run time.
template <int MOST, class Work>
inline void with_constant(int n, Work work) {
    if constexpr (MOST > 0) {
        if (n == MOST)
            work.template operator()<MOST>();
        else
            with_constant<MOST - 1>(n, work);
    }
}

// The images of all bundles as factors; in bfloat16, each pairs two planes.
inline const factor* factors_of(const stored* from, int bundles, int planes, size plane) {
#ifdef BF16
    static thread_local std::vector<factor> scratch;
    const int pairs = (planes + 1) / 2;
    if (scratch.size() < std::size_t(bundles) * pairs * plane) scratch.resize(std::size_t(bundles) * pairs * plane);
    factor* to = scratch.data();
    const auto widened = [](const stored* p) {
        return _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
    };
    for (int bundle = 0; bundle < bundles; bundle++)
        for (int first = 0; first < planes; first += 2) {
            const stored* pair = from + (size(bundle) * planes + first) * plane;
            for (size at = 0; at < plane; at += V, to += V) {
                const __m512i low = widened(pair + at);
                const __m512i high = first + 1 < planes ? widened(pair + plane + at) : __m512i{};
                *reinterpret_cast<factors*>(to) = factors(_mm512_or_si512(low, _mm512_slli_epi32(high, 16)));
            }
        }
    return scratch.data();
#else
    return from;
#endif
}

// Correlates ``from``, n images, with ``weight(row, plane)``, which points at a kernel's taps, to output planes
// (bundles, rows, to_height, to_width). Calls ``finish(row)`` for each while it is in the cache.
template <class Weight, class Finish>
inline void correlate_all(const Sizes& s, int n, const stored* from, int planes, bool forward, Weight weight,
                          const real* bias, stored* to, int rows, Finish finish) {
    const std::vector<Span> ys = spans(s.y, forward), xs = spans(s.x, forward);
    const int width = forward ? s.width : s.columns;
    static thread_local std::vector<factor> packed;
    packed.resize(size(planes) * s.taps * MOST_ROWS);
    Correlation c{nullptr, packed.data(), planes, width, s.kernel, forward ? 1 : -s.stride, forward ? s.in : s.out, forward ? s.out : s.in, false};
    const int pairs = (planes + PAIR - 1) / PAIR;
    const factor* source = factors_of(from, (n + LANES - 1) / LANES, planes, c.from_plane);
    // Sums over some of the planes are stored, which would round them in bfloat16.
    const int most = PAIR > 1 ? pairs : std::max(1, FIRST_LEVEL / (s.taps * LANES * int(sizeof(real))));
    for (int tile = 0, row = 0, count; (count = of_tile(rows, MOST_ROWS, tile)); tile++) {
        with_constant<MOST_ROWS>(count, [&]<int ROWS>() {
            for (int i = 0; i < pairs; i++)
                for (int r = 0; r < ROWS; r++)
                    for (int tap = 0; tap < s.taps; tap++) {
                        const real second = PAIR * i + 1 < planes ? weight(row + r, PAIR * i + 1)[tap] : 0;
                        packed[(size(i) * s.taps + tap) * ROWS + r] = paired(weight(row + r, PAIR * i)[tap], second);
                    }
            for (int bundle = 0; bundle * LANES < n; bundle++) {
                const auto at = n - bundle * LANES > V ? correlate<ROWS, 2> : correlate<ROWS, 1>;
                // The inputs of a pixel in this many planes stay in the L1 cache until the next pixel.
                for (int part = 0, first = 0; (c.planes = of_tile(pairs, most, part)); part++, first += c.planes) {
                    c.begun = part > 0;
                    c.from = source + (size(bundle) * pairs + first) * c.from_plane;
                    c.w = packed.data() + size(first) * s.taps * ROWS;
                    stored* pixel = to + (size(bundle) * rows + row) * c.to_plane;
                    for (const Span& y : ys)
                        for (const Span& x : xs) {
                            at(c, y, x, bias ? bias + row : nullptr, pixel);
                            pixel += LANES;
                        }
                }
            }
        });
        for (int r = 0; r < count; r++) finish(row++);
    }
}

// Adds neighbouring lanes of COUNT vectors until one vector, of the sum of each, is left.
typedef decltype(vec{} > vec{}) lane_numbers;
template <int COUNT>
inline void add_neighbours(vec* v) {
    if constexpr (COUNT > 1) {
        lane_numbers even;
        UNROLLED for (int i = 0; i < V; i++) even[i] = 2 * i;
        UNROLLED for (int i = 0; i < COUNT / 2; i++)
            v[i] = __builtin_shuffle(v[2 * i], v[2 * i + 1], even) + __builtin_shuffle(v[2 * i], v[2 * i + 1], even + 1);
        add_neighbours<COUNT / 2>(v);
    }
}
// Each vector's sum over its lanes, always in the same order.
inline void sums(const vec* from, int count, real* to) {
    for (int i = 0; i < count; i += V) {
        const int some = std::min(V, count - i);
        vec v[V] = {};
        std::memcpy(v, from + i, some * sizeof(vec));  // as a template argument, vec would lose its alignment
        add_neighbours<V>(v);
        std::memcpy(to + i, v, some * sizeof(real));
    }
}

// Transposes V vectors of V lanes: lane j of vector i becomes lane i of vector j (Eklundh, 1972).
inline void transpose(vec* v) {
    UNROLLED for (int apart = V / 2; apart; apart /= 2) {
        lane_numbers upper, lower;
        UNROLLED for (int j = 0; j < V; j++) {
            upper[j] = j & apart ? V + j - apart : j;
            lower[j] = j & apart ? V + j : j + apart;
        }
        UNROLLED for (int i = 0; i < V; i++) {
            if (i & apart) continue;
            const vec a = v[i], b = v[i + apart];
            v[i] = __builtin_shuffle(a, b, upper);
            v[i + apart] = __builtin_shuffle(a, b, lower);
        }
    }
}

// Bundled planes to rows (pixels, n, width): the values of all planes at a pixel of an image are contiguous, padded
// with zeros to the width.
inline void to_rows(const stored* from, int planes, size from_plane, int pixels, int n, int width, real* to) {
    for (int at = 0; at < n; at += V) {
        const stored* half = from + size(at / LANES) * planes * from_plane + at % LANES;
        for (int p = 0; p < pixels; p++)
            for (int first = 0; first < width; first += V) {
                vec v[V] = {};
                for (int i = 0; i < std::min(V, planes - first); i++)
                    v[i] = load(half + (first + i) * from_plane + p * LANES);
                transpose(v);
                real* row = to + (size(p) * n + at) * width + first;
                for (int i = 0; i < std::min(V, n - at); i++, row += width)
                    width - first < V ? (void)std::memcpy(row, v + i, (width - first) * sizeof(real)) : store(row, v[i]);
            }
    }
}

constexpr int SUMS = REGISTERS - REGISTERS / 4, MOST_VECTORS = REGISTERS / 8;  // in registers; vectors of them in a row
constexpr int SECOND_LEVEL = 128 << 10;  // bytes of the L2 cache for data that are reused

// Whether matrix products compute dw faster. Measured by benchmarks.kernels.
inline bool by_rows(const Sizes& s) {
    return PAIR == 1 && s.outputs >= 32 && s.channels >= 8 && (REGISTERS == 32 || s.pixels <= 16);
}

// Rows of x and of dz for each of ``images``, at ``pixels`` in a row.
struct Rows {
    const real *x, *dz;
    size x_row, x_pixel, dz_row, dz_pixel;
    int pixels, images;
};

// Adds to ``totals`` (CHANNELS, VECTORS) the outer products of the rows of x and of dz.
template <int CHANNELS, int VECTORS>
OWN_REGISTERS void add_products(const Rows& rows, real* totals, size channel) {
    vec total[CHANNELS][VECTORS];
    UNROLLED for (int c = 0; c < CHANNELS; c++)
        UNROLLED for (int v = 0; v < VECTORS; v++) total[c][v] = load(totals + c * channel + v * V);
    for (int p = 0; p < rows.pixels; p++) {
        const real *x = rows.x + p * rows.x_pixel, *dz = rows.dz + p * rows.dz_pixel;
        for (int i = 0; i < rows.images; i++, x += rows.x_row, dz += rows.dz_row) {
            vec gradient[VECTORS];
            UNROLLED for (int v = 0; v < VECTORS; v++) gradient[v] = held(load(dz + v * V));
            UNROLLED for (int c = 0; c < CHANNELS; c++) {
                const vec value = held(all(x[c]));
                UNROLLED for (int v = 0; v < VECTORS; v++) total[c][v] += gradient[v] * value;
            }
        }
    }
    UNROLLED for (int c = 0; c < CHANNELS; c++)
        UNROLLED for (int v = 0; v < VECTORS; v++) store(totals + c * channel + v * V, total[c][v]);
}

// Adds to ``totals`` (channels, taps, VECTORS) the products under ``tap`` in rows ``begin`` to ``end`` of the planes.
template <int VECTORS>
inline void add_tap(const Sizes& s, int tap, int begin, int end, const real* x, const real* dz, int width, int n,
                    real* totals) {
    const int ky = tap / s.kernel, kx = tap % s.kernel;
    const Range ys = under_tap(s.y, ky, begin, end), xs = under_tap(s.x, kx, 0, s.columns);
    Rows rows{nullptr, nullptr, s.channels, size(s.stride) * n * s.channels, width, size(n) * width, xs.count, n};
    for (int tile = 0, c = 0, count; (count = of_tile(s.channels, SUMS / VECTORS, tile)); tile++, c += count)
        with_constant<SUMS / VECTORS>(count, [&]<int CHANNELS>() {
            for (int y = ys.first; y < ys.first + ys.count; y++) {
                rows.x = x + source(s, y, xs.first, ky, kx) * n * s.channels + c;
                rows.dz = dz + size(y * s.columns + xs.first) * n * width;
                add_products<CHANNELS, VECTORS>(rows, totals + (size(c) * s.taps + tap) * VECTORS * V, s.taps * VECTORS * V);
            }
        });
}

// dw as matrix products, with output planes as lanes: no sums over lanes, which are expensive for small planes.
inline void weight_gradients_of_rows(const Sizes& s, const stored* x, const stored* dz, real* dw, int n) {
    static thread_local std::vector<real> x_rows, dz_rows, scratch;
    const int vectors = (s.outputs + V - 1) / V, weights = s.channels * s.taps;
    x_rows.resize(size(s.height) * s.width * n * s.channels);
    dz_rows.resize(size(s.pixels) * n * vectors * V);
    to_rows(x, s.channels, s.in, s.height * s.width, n, s.channels, x_rows.data());
    to_rows(dz, s.outputs, s.out, s.pixels, n, vectors * V, dz_rows.data());
    for (int tile = 0, first = 0, count; (count = of_tile(vectors, MOST_VECTORS, tile)); tile++, first += count) {
        scratch.assign(size(weights) * count * V, 0);  // (channels, taps, count * V)
        const int chunk = std::max(1, SECOND_LEVEL / int(s.columns * n * count * V * sizeof(real)));
        with_constant<MOST_VECTORS>(count, [&]<int VECTORS>() {
            for (int begin = 0; begin < s.rows; begin += chunk)
                for (int tap = 0; tap < s.taps; tap++)
                    add_tap<VECTORS>(s, tap, begin, std::min(begin + chunk, s.rows), x_rows.data(),
                                     dz_rows.data() + first * V, vectors * V, n, scratch.data());
        });
        for (int k = 0; k < count; k++)
            for (int w = 0; w < weights; w += V) {
                const int some = std::min(V, weights - w), o = (first + k) * V;
                vec v[V] = {};
                for (int i = 0; i < some; i++) v[i] = load(scratch.data() + (size(w + i) * count + k) * V);
                transpose(v);
                for (int i = 0; i < std::min(V, s.outputs - o); i++)
                    std::memcpy(dw + size(o + i) * weights + w, v + i, some * sizeof(real));
            }
    }
}

// Planes of a weight gradient at a time: their sums fill the registers.
constexpr int MOST_OUTPUTS = PAIR > 1 ? 8 : 4, MOST_CHANNELS = 3;
constexpr int TOGETHER = 4;  // bundles of small planes at a time

// Adds to ``totals`` (ROWS, COLUMNS, kernel, kernel) the products of ROWS planes of dz and COLUMNS planes of x.
template <int ROWS, int COLUMNS, int HALVES>
OWN_REGISTERS void weight_gradient(const Sizes& s, const stored* x, const stored* dz, size dz_bundle, vec* totals,
                                   int bundles) {
    constexpr int PARTS = PAIR > 1 ? 1 : HALVES;  // a register holds the values of both halves in bfloat16
    const size in = s.in, out = s.out, step = s.stride * LANES;
    int chunk = s.rows;
    const auto bytes = [&] {
        return (ROWS * chunk * s.columns + COLUMNS * ((chunk - 1) * s.stride + s.kernel) * s.width) * LANES * sizeof(stored);
    };
    // In bfloat16, loading the sums, which stay in float, takes longer than loading images from the L2 cache.
    while (chunk > 1 && bytes() > (PAIR > 1 ? SECOND_LEVEL : FIRST_LEVEL)) chunk--;
    for (int first = 0; first < s.rows; first += chunk)
        for (int ky = 0; ky < s.kernel; ky++) {
            const Range ys = under_tap(s.y, ky, first, std::min(first + chunk, s.rows));
            for (int kx = 0; kx < s.kernel; kx++) {
                const Range xs = under_tap(s.x, kx, 0, s.columns);
                if (ys.count <= 0 || xs.count <= 0) continue;
                vec* kept = totals + ky * s.kernel + kx;
                vec total[ROWS][COLUMNS];
                UNROLLED for (int r = 0; r < ROWS; r++)
                    UNROLLED for (int c = 0; c < COLUMNS; c++) total[r][c] = kept[(r * COLUMNS + c) * s.taps];
                for (int bundle = 0; bundle < bundles; bundle++)
                    for (int y = ys.first; y < ys.first + ys.count; y++) {
                        const stored* g = dz + bundle * dz_bundle + size(y * s.columns + xs.first) * LANES;
                        const stored* end = g + xs.count * LANES;
                        const stored* from = x + bundle * s.channels * in + source(s, y, xs.first, ky, kx) * LANES;
                        for (; g < end; g += LANES, from += step)
                            UNROLLED for (int part = 0; part < PARTS; part++) {
                                factors value[COLUMNS];
                                UNROLLED for (int c = 0; c < COLUMNS; c++)
                                    value[c] = held(images<HALVES>(from + c * in, part));
                                UNROLLED for (int r = 0; r < ROWS; r++) {
                                    const factors gradient = held(images<HALVES>(g + r * out, part));
                                    UNROLLED for (int c = 0; c < COLUMNS; c++)
                                        total[r][c] = with_product(total[r][c], gradient, value[c]);
                                }
                            }
                    }
                UNROLLED for (int r = 0; r < ROWS; r++)
                    UNROLLED for (int c = 0; c < COLUMNS; c++) kept[(r * COLUMNS + c) * s.taps] = total[r][c];
            }
        }
}

// dw of ``outputs`` planes, at most MOST_OUTPUTS.
inline void weight_gradients(const Sizes& s, int outputs, const stored* x, const stored* dz, size dz_bundle, real* dw,
                             int n) {
    static thread_local std::vector<real> scratch;
    scratch.resize(MOST_OUTPUTS * MOST_CHANNELS * s.taps * V);
    vec* totals = reinterpret_cast<vec*>(scratch.data());
    const int whole = n / LANES + (n % LANES > V);  // bundles with images in both halves
    const int together = s.pixels <= LANES ? TOGETHER : 1;
    with_constant<MOST_OUTPUTS>(outputs, [&]<int ROWS>() {
        for (int tile = 0, c = 0, count; (count = of_tile(s.channels, MOST_CHANNELS, tile)); tile++, c += count) {
            std::fill(scratch.begin(), scratch.end(), real(0));
            with_constant<MOST_CHANNELS>(count, [&]<int COLUMNS>() {
                const auto from = [&](int bundle) { return x + (size(bundle) * s.channels + c) * s.in; };
                for (int bundle = 0; bundle < whole; bundle += together)
                    weight_gradient<ROWS, COLUMNS, 2>(s, from(bundle), dz + bundle * dz_bundle, dz_bundle, totals,
                                                      std::min(together, whole - bundle));
                if (n > whole * LANES)
                    weight_gradient<ROWS, COLUMNS, 1>(s, from(whole), dz + whole * dz_bundle, dz_bundle, totals, 1);
            });
            for (int r = 0; r < ROWS; r++)
                sums(totals + r * count * s.taps, count * s.taps, dw + (size(r) * s.channels + c) * s.taps);
        }
    });
}

// Sums of a plane for the images of one bundle.
struct Total {
    vec v[2] = {};
    real of(int images) const {
        real total = 0;
        for (int i = 0; i < std::min(images, LANES); i++) total += v[i / V][i % V];
        return total;
    }
};

inline vec greater(vec x, vec y) { return (x > y) | (x != x) ? x : y; }  // NaN wins, as in torch

// out = the maximum of each window of relu(z * scale + shift + residual)
template <int SIDE>
inline void finish(const Sizes& s, const stored* z, real scale, real shift, const stored* residual, stored* out) {
    const vec least = all(s.relu ? 0 : -std::numeric_limits<real>::infinity());
    const auto rectified = [&](vec value) { return value < least ? least : value; };
    if (!s.pool)
        return each_vector(s.pixels, [&](size at, int) {
            const vec value = load(z + at) * scale + shift;
            store(out + at, rectified(residual ? value + load(residual + at) : value));
        });
    each_window<SIDE>(s, [&](int p, int y0, int y1, int x0, int x1) {
        UNROLLED for (int v = 0; v < LANES; v += V) {
            vec best = all(-std::numeric_limits<real>::infinity());
            UNROLLED for (int y = y0; y < y1; y++)
                UNROLLED for (int x = x0; x < x1; x++)
                    best = greater(load(z + size(y * s.columns + x) * LANES + v) * scale + shift, best);
            store(out + size(p) * LANES + v, rectified(best));
        }
    });
}

// Gradients g of the input of the ReLU in `finish`, given those of ``out``; sums g and g * (z - mean).
template <int SIDE>
inline void begin_backward(const Sizes& s, const stored* dout, const stored* z, real scale, real shift, real mean,
                           const stored* out, stored* g, Total& total, Total& product) {
    const vec least = all(s.relu ? 0 : -std::numeric_limits<real>::infinity());
    if (!s.pool)
        return each_vector(s.pixels, [&](size at, int half) {
            const vec gradient = load(out + at) > least ? load(dout + at) : vec{};
            store(g + at, gradient);
            total.v[half] += gradient;
            product.v[half] += gradient * (load(z + at) - mean);
        });
    // Windows of 2x2 cover everything except perhaps an edge.
    if (SIDE == 0 || s.rows % 2 || s.columns % 2) std::memset(g, 0, s.pixels * LANES * sizeof(stored));
    each_window<SIDE>(s, [&](int p, int y0, int y1, int x0, int x1) {
        UNROLLED for (int half = 0; half < 2; half++) {
            const vec best = load(out + size(p) * LANES + half * V);
            vec left = best > least ? load(dout + size(p) * LANES + half * V) : vec{};
            total.v[half] += left;
            UNROLLED for (int y = y0; y < y1; y++)
                UNROLLED for (int x = x0; x < x1; x++) {
                    const size at = size(y * s.columns + x) * LANES + half * V;
                    const vec value = load(z + at), taken = rounded(value * scale + shift) == best ? left : vec{};
                    left -= taken;  // the first of equal maxima takes the gradient, as in torch
                    store(g + at, SIDE ? taken : load(g + at) + taken);
                    product.v[half] += taken * (value - mean);
                }
        }
    });
}

}  // namespace

extern "C" {

// Number of values in bundles of these images.
std::int64_t numbers(int n, int channels, int height, int width) {
    return (n + LANES - 1) / LANES * std::int64_t(channels) * plane(height, width);
}

std::int64_t packed_numbers(const Shape& shape, int n) { return numbers(n, shape.channels, shape.height, shape.width); }

// Converts images (n, channels, height, width) to the input of a block, and bundles to images.
void pack(const Shape& shape, const stored* images, stored* bundles, int n) {
    const int channels = shape.channels, height = shape.height, width = shape.width;
    const int pixels = height * width;
    for (int first = 0; first < (n + LANES - 1) / LANES * LANES; first += V)
        for (int c = 0; c < channels; c++) {
            const stored* from = images + (size(first) * channels + c) * pixels;
            stored* to = bundles + (size(first / LANES) * channels + c) * plane(height, width) + first % LANES;
            for (int p = 0; p < pixels; p += V) {
                const int some = std::min(V, pixels - p);
                vec v[V] = {};
                for (int i = 0; i < std::min(V, n - first); i++) {
                    const stored* row = from + size(i) * channels * pixels + p;
                    v[i] = some < V ? load_some(row, some) : load(row);
                }
                transpose(v);
                for (int j = 0; j < some; j++) store(to + (p + j) * LANES, v[j]);
            }
        }
}
void unpack(const stored* bundles, stored* images, int n, int channels, int height, int width) {
    const int pixels = height * width;
    for (int first = 0; first < n; first += LANES)
        for (int c = 0; c < channels; c++, bundles += plane(height, width))
            for (int p = 0; p < pixels; p += 64)
                for (int i = 0; i < std::min(LANES, n - first); i++) {
                    stored* to = images + (size(first + i) * channels + c) * pixels;
                    for (int q = p; q < std::min(p + 64, pixels); q++) to[q] = bundles[q * LANES + i];
                }
}

// z is the convolution. moments (3, outputs): mean of z, inverse of its standard deviation, and the shift of scaled
// z. With ``training``, the moments are the batch's, and the running ones are updated; otherwise they are the running
// ones. bias and residual may be null; gamma to running_var are null without batch norm.
void forward(const Shape& shape, const stored* x, const real* w, const real* bias, const real* gamma, const real* beta,
             const stored* residual, real* running_mean, real* running_var, double momentum, double eps, int training,
             stored* z, real* moments, stored* out, int n) {
    const Sizes s(shape);
    const int bundles = (n + LANES - 1) / LANES;
    const auto plane_of = [&](int bundle, int o) { return size(bundle) * s.outputs + o; };
    const auto finish_plane = [&](int o) {
        real scale = 1, shift = 0;
        if (s.norm) {
            real mean = 0, variance = 0;
            if (training) {
                const real count = real(n) * s.pixels;
                for (int bundle = 0; bundle < bundles; bundle++) {
                    const stored* from = z + plane_of(bundle, o) * s.out;
                    Total total;
                    each_vector(s.pixels, [&](size at, int half) { total.v[half] += load(from + at); });
                    mean += total.of(n - bundle * LANES);
                }
                mean /= count;
                for (int bundle = 0; bundle < bundles; bundle++) {
                    const stored* from = z + plane_of(bundle, o) * s.out;
                    Total total;
                    each_vector(s.pixels, [&](size at, int half) {
                        const vec centred = load(from + at) - mean;
                        total.v[half] += centred * centred;
                    });
                    variance += total.of(n - bundle * LANES);
                }
                running_mean[o] += real(momentum) * (mean - running_mean[o]);
                running_var[o] += real(momentum) * (variance / (count - 1) - running_var[o]);
                variance /= count;
            } else {
                mean = running_mean[o];
                variance = running_var[o];
            }
            const real deviation = 1 / std::sqrt(variance + real(eps));
            scale = gamma[o] * deviation;
            shift = beta[o] - mean * scale;
            moments[o] = mean;
            moments[s.outputs + o] = deviation;
            moments[2 * s.outputs + o] = shift;
        }
        for (int bundle = 0; bundle < bundles; bundle++)
            (s.pools_2x2() ? finish<2> : finish<0>)(s, z + plane_of(bundle, o) * s.out, scale, shift,
                   residual ? residual + plane_of(bundle, o) * s.out : nullptr, out + plane_of(bundle, o) * s.pooled);
    };
    const auto weight = [&](int o, int c) { return w + (size(o) * s.channels + c) * s.taps; };
    correlate_all(s, n, x, s.channels, true, weight, bias, z, s.outputs, finish_plane);
}

// Gradients of everything, given those of ``out``; dx, dbias and dresidual may be null.
void backward(const Shape& shape, const stored* dout, const stored* x, const real* w, const real* gamma, const stored* z,
              const real* moments, const stored* out, int training, stored* dx, real* dw, real* dbias, real* dgamma,
              real* dbeta, stored* dresidual, int n) {
    const Sizes s(shape);
    const int bundles = (n + LANES - 1) / LANES;
    // dx, and dw in rows, need the gradients of all planes of z; otherwise dw needs those of a tile.
    const bool all_planes = dx || by_rows(s);
    const int kept = all_planes ? s.outputs : MOST_OUTPUTS;
    static thread_local std::vector<stored> scratch;
    if (scratch.size() < std::size_t(bundles * kept * s.out)) scratch.resize(bundles * kept * s.out);
    stored* dz = scratch.data();
    const auto gradient_of_plane = [&](int o, int row) {
        const auto to = [&](int bundle) { return dz + (size(bundle) * kept + row) * s.out; };
        const auto from = [&](int bundle) { return z + (size(bundle) * s.outputs + o) * s.out; };
        const real mean = s.norm ? moments[o] : 0, deviation = s.norm ? moments[s.outputs + o] : 1;
        const real scale = s.norm ? gamma[o] * deviation : 1, shift = s.norm ? moments[2 * s.outputs + o] : 0;
        real total = 0, product = 0;
        for (int bundle = 0; bundle < bundles; bundle++) {
            const size at = (size(bundle) * s.outputs + o) * s.pooled;
            Total totals, products;
            (s.pools_2x2() ? begin_backward<2> : begin_backward<0>)(s, dout + at, from(bundle), scale, shift, mean, out + at, to(bundle), totals, products);
            if (dresidual) std::memcpy(dresidual + at, to(bundle), s.out * sizeof(stored));
            total += totals.of(n - bundle * LANES);
            product += products.of(n - bundle * LANES);
        }
        if (s.norm) {
            product *= deviation;
            dbeta[o] = total;
            dgamma[o] = product;
            const real count = real(n) * s.pixels;
            const real linear = training ? -scale * product * deviation / count : 0;
            const real constant = training ? -scale * total / count - linear * mean : 0;
            total = 0;
            for (int bundle = 0; bundle < bundles; bundle++) {
                vec real_images[2];
                for (int i = 0; i < LANES; i++) real_images[i / V][i % V] = bundle * LANES + i < n;
                stored* g = to(bundle);
                const stored* value = from(bundle);
                Total totals;
                each_vector(s.pixels, [&](size at, int half) {
                    const vec gradient = (load(g + at) * scale + load(value + at) * linear + constant) * real_images[half];
                    store(g + at, gradient);
                    totals.v[half] += gradient;
                });
                total += totals.of(n - bundle * LANES);
            }
        }
        if (dbias) dbias[o] = total;
    };
    for (int tile = 0, o = 0, count; (count = of_tile(s.outputs, MOST_OUTPUTS, tile)); tile++, o += count) {
        const int row = all_planes ? o : 0;
        for (int r = 0; r < count; r++) gradient_of_plane(o + r, row + r);
        if (!by_rows(s)) weight_gradients(s, count, x, dz + row * s.out, kept * s.out, dw + size(o) * s.channels * s.taps, n);
    }
    if (by_rows(s)) weight_gradients_of_rows(s, x, dz, dw, n);
    if (!dx) return;
    const auto weight = [&](int c, int o) { return w + (size(o) * s.channels + c) * s.taps; };
    correlate_all(s, n, dz, s.outputs, false, weight, nullptr, dx, s.channels, [](int) {});
}
}

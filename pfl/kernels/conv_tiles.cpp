// A block of a convolutional network in bfloat16 on one thread of a CPU with tiles (Intel AMX).
//
// The functions are those of conv_block.cpp, with the same results up to rounding. All products are matrix products
// of tiles with SIDE rows of 64 bytes: a row belongs to an image or to an output. LANES images form a bundle; the last
// may have fewer. A bundle is (pixels, images, channels), with zeros for channels up to a multiple of SIDE, so that
// rows of a tile are contiguous and taps outside the image are skipped.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <immintrin.h>
#include <limits>
#include <sys/syscall.h>
#include <unistd.h>
#include <vector>

#include "planes.h"

namespace {

constexpr int SIDE = 16, LANES = 2 * SIDE;  // rows of a tile, and floats in a row
typedef float vec __attribute__((vector_size(64), aligned(4), may_alias));
typedef int integers __attribute__((vector_size(64)));
struct stored {  // a bfloat16 value
    std::uint16_t bits;
};

inline vec load(const float* p) { return *reinterpret_cast<const vec*>(p); }
inline void store(float* p, vec v) { *reinterpret_cast<vec*>(p) = v; }
inline vec all(float value) { return value - vec{}; }
inline __m256i half(const stored* p) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)); }
inline vec load(const stored* p) { return vec(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half(p)), 16)); }
inline __m256i narrowed(vec v) { return __m256i(_mm512_cvtneps_pbh(__m512(v))); }
inline void store(stored* p, vec v) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), narrowed(v)); }
inline vec rounded(vec v) { return vec(_mm512_slli_epi32(_mm512_cvtepu16_epi32(narrowed(v)), 16)); }
// Interleaves two rows: a row of a second factor.
inline __m512i pairs(__m256i first, __m256i second) {
    return _mm512_or_si512(_mm512_cvtepu16_epi32(first), _mm512_slli_epi32(_mm512_cvtepu16_epi32(second), 16));
}
#define UNROLLED _Pragma("GCC unroll 16")
#define NOINLINE __attribute__((noinline))  // a separate function, also in a profile

inline int padded(int channels) { return up(channels, SIDE) * SIDE; }

// ---- Tiles. 0 to 3 are sums, 4 and 5 first factors, 6 and 7 second factors.

template <int T>
inline void tile_load(const void* p, size stride) {
    asm volatile("tileloadd (%0,%1,1), %%tmm%c2" ::"r"(p), "r"(stride), "i"(T) : "memory");
}
template <int T>
inline void tile_store(void* p, size stride) {
    asm volatile("tilestored %%tmm%c2, (%0,%1,1)" ::"r"(p), "r"(stride), "i"(T) : "memory");
}
template <int T>
inline void tile_zero() {
    asm volatile("tilezero %%tmm%c0" ::"i"(T));
}
template <int SUM, int A, int B>
inline void tile_product() {
    asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(SUM), "i"(A), "i"(B));
}

// Tiles for first factors of ``rows`` rows, SIDE of them in the first tile, with ``depth`` values each.
class Tiles {
  public:
    Tiles(int rows, int depth) {
        alignas(64) struct {
            std::uint8_t palette = 1, start = 0, reserved[14] = {};
            std::uint16_t bytes[16] = {};
            std::uint8_t rows[16] = {};
        } layout;
        for (int t = 0; t < 8; t++) {
            const int of_tile = std::clamp(rows - SIDE * (t < 4 ? t / 2 : t % 2), 1, SIDE);
            layout.rows[t] = t < 6 ? of_tile : up(depth, 2);
            layout.bytes[t] = t == 4 || t == 5 ? up(depth, 2) * 4 : 64;
        }
        asm volatile("ldtilecfg %0" ::"m"(layout));
    }
    ~Tiles() { asm volatile("tilerelease"); }
};

// One of the products that are summed: offsets of its factors, in values, from the start of the factors.
struct Step {
    size a, b;
};

// Start and strides of the factors.
struct Product {
    const stored *a, *b;
    size a_next, b_next;      // from the first tile of a factor to the second
    size a_stride, b_stride;  // bytes from row to row
};
// Adds the product of ROWS tiles of the first factor and COLUMNS of the second to the sums.
template <int ROWS, int COLUMNS>
inline void add_product(const Product& p, const Step& step) {
    tile_load<6>(p.b + step.b, p.b_stride);
    tile_load<4>(p.a + step.a, p.a_stride);
    tile_product<0, 4, 6>();
    if constexpr (COLUMNS == 2) {
        tile_load<7>(p.b + step.b + p.b_next, p.b_stride);
        tile_product<1, 4, 7>();
    }
    if constexpr (ROWS == 2) {
        tile_load<5>(p.a + step.a + p.a_next, p.a_stride);
        tile_product<2, 5, 6>();
        if constexpr (COLUMNS == 2) tile_product<3, 5, 7>();
    }
}
template <int ROWS, int COLUMNS>
inline void each_sum(auto work) {
    work.template operator()<0>(0, 0);
    if constexpr (COLUMNS == 2) work.template operator()<1>(0, 1);
    if constexpr (ROWS == 2) work.template operator()<2>(1, 0);
    if constexpr (ROWS == 2 && COLUMNS == 2) work.template operator()<3>(1, 1);
}
// Calls ``work.template operator()<ROWS, COLUMNS>()`` with the numbers of tiles, at least 1, limited to 2.
inline void with_tiles(int rows, int columns, auto work) {
    if (rows > 1)
        columns > 1 ? work.template operator()<2, 2>() : work.template operator()<2, 1>();
    else
        columns > 1 ? work.template operator()<1, 2>() : work.template operator()<1, 1>();
}

// ---- Convolutions.

constexpr int FEW = 4;  // channels of images up to which `pack` gathers the taps of a kernel row

// A block's sizes; taps and x are those of the convolution of the output of `pack`.
struct Sizes : Planes {
    bool gathers;
    int used, inputs, results;  // channels of the output of `pack`, the same padded, and padded outputs
    explicit Sizes(const Shape& shape) : Planes(shape), gathers(images && channels <= FEW) {
        used = gathers ? kernel * channels : channels;
        inputs = padded(used);
        results = padded(outputs);
        if (gathers) {
            x = {columns, columns, 1, 1, 0};
            taps = kernel;
        }
    }
    size of_input() const { return size(y.length) * x.length * inputs; }  // values of an image
};

// Memory that is kept between calls. It is aligned, as rows of tiles that cross cache lines load six times slower.
template <class T>
class Scratch {
  public:
    T* of(size count) {
        if (count > room) {
            std::free(memory);
            memory = static_cast<T*>(std::aligned_alloc(64, (count * sizeof(T) + 63) / 64 * 64));
            room = count;
        }
        return memory;
    }

    ~Scratch() { std::free(memory); }

  private:
    T* memory = nullptr;
    size room = 0;
};

inline void copy(const stored* from, int from_step, int count, stored* to, int to_step) {
    if (from_step == 1 && to_step == 1) return (void)std::memcpy(to, from, count * sizeof(stored));
    for (int i = 0; i < count; i++) to[i * to_step] = from[i * from_step];
}

// Calls ``work(first image, images)`` for each bundle.
inline void each_bundle(int n, auto work) {
    for (int first = 0; first < n; first += LANES) work(first, std::min(LANES, n - first));
}

// The COLUMNS columns of SIDE rows that are ``stride`` values apart. Reading four values of a row at a time halves
// the in-register shuffles of a transposition, which are its bottleneck.
template <int COLUMNS>
inline void load_columns(const float* rows, size stride, vec* columns) {
    UNROLLED for (int k = 0; k < COLUMNS; k += 4) {
        __m512 fours[4];  // of rows i, 4 + i, 8 + i and 12 + i
        UNROLLED for (int i = 0; i < 4; i++) {
            const auto four = [&](int row) { return _mm_loadu_ps(rows + row * stride + k); };
            fours[i] = _mm512_castps128_ps512(four(i));
            fours[i] = _mm512_mask_broadcast_f32x4(fours[i], 0x00f0, four(4 + i));
            fours[i] = _mm512_mask_broadcast_f32x4(fours[i], 0x0f00, four(8 + i));
            fours[i] = _mm512_mask_broadcast_f32x4(fours[i], 0xf000, four(12 + i));
        }
        const auto low = [&](int i) { return __m512d(_mm512_unpacklo_ps(fours[i], fours[i + 1])); };
        const auto high = [&](int i) { return __m512d(_mm512_unpackhi_ps(fours[i], fours[i + 1])); };
        columns[k] = vec(_mm512_unpacklo_pd(low(0), low(2)));
        columns[k + 1] = vec(_mm512_unpackhi_pd(low(0), low(2)));
        columns[k + 2] = vec(_mm512_unpacklo_pd(high(0), high(2)));
        columns[k + 3] = vec(_mm512_unpackhi_pd(high(0), high(2)));
    }
}
// The same for fewer rows and columns, padded with zeros.
inline void load_columns(const float* rows, size stride, int count, int columns, vec* to) {
    if (count == SIDE && columns == SIDE) return load_columns<SIDE>(rows, stride, to);
    float some[SIDE * SIDE] = {};
    for (int i = 0; i < count; i++) std::memcpy(some + i * SIDE, rows + i * stride, columns * sizeof(float));
    load_columns<SIDE>(some, SIDE, to);
}

// Transposes weights (outputs, count), with ``all`` weights per output, to (tiles of outputs, count, SIDE).
NOINLINE void transpose_weights(const float* w, size all, int outputs, int count, stored* to) {
    for (int first = 0; first < outputs; first += SIDE, w += SIDE * all)
        for (int at = 0; at < count; at += SIDE) {
            const int some = std::min(SIDE, count - at);
            vec v[SIDE];
            load_columns(w + at, all, std::min(SIDE, outputs - first), some, v);
            UNROLLED for (int i = 0; i < SIDE; i++)
                if (i < some) store(to + i * SIDE, v[i]);
            to += some * SIDE;
        }
}
// From these, (.., channels, taps, SIDE), second factors for sums over channels: (tiles, taps, channels / 2, SIDE, 2).
NOINLINE void factors_of_channels(const stored* transposed, int tiles, int channels, int taps, stored* to) {
    for (int tile = 0; tile < tiles; tile++, transposed += size(channels) * taps * SIDE)
        for (int tap = 0; tap < taps; tap++)
            for (int c = 0; c < padded(channels); c += 2, to += 2 * SIDE) {
                const stored* first = transposed + (size(c) * taps + tap) * SIDE;
                const __m256i second = c + 1 < channels ? half(first + taps * SIDE) : __m256i{};
                _mm512_storeu_si512(to, pairs(c < channels ? half(first) : __m256i{}, second));
            }
}
// The same for sums over outputs: (tiles of channels, taps, outputs / 2, SIDE, 2).
NOINLINE void factors_of_outputs(const stored* transposed, int tiles, int channels, int taps, stored* to) {
    const size tile_size = size(channels) * taps * SIDE;
    for (int first = 0; first < channels; first += SIDE)
        for (int tap = 0; tap < taps; tap++)
            for (int tile = 0; tile < tiles; tile++, to += SIDE * SIDE) {
                const stored* from = transposed + tile * tile_size + (size(first) * taps + tap) * SIDE;
                stored some[SIDE * SIDE] = {};
                if (channels - first < SIDE) {
                    for (int c = first; c < channels; c++, from += taps * SIDE)
                        std::memcpy(some + (c - first) * SIDE, from, SIDE * sizeof(stored));
                    from = some;
                }
                vec v[SIDE / 2];  // pairs of outputs
                load_columns<SIDE / 2>(reinterpret_cast<const float*>(from), (from == some ? 1 : taps) * SIDE / 2, v);
                UNROLLED for (int i = 0; i < SIDE / 2; i++) _mm512_storeu_si512(to + 2 * SIDE * i, __m512i(v[i]));
            }
}

// The same for weights of one tap (outputs, channels), whose columns are in order: `transpose_weights` is not needed.
NOINLINE void factors_of_channels_of_one_tap(const float* w, int outputs, int channels, int tiles, stored* to) {
    for (int first = 0; first < tiles * SIDE; first += SIDE)
        for (int c = 0; c < padded(channels); c += LANES) {
            const int rows = (std::min(LANES, padded(channels) - c)) / 2;  // pairs of channels
            alignas(64) float of_outputs[SIDE * SIDE] = {};
            for (int o = 0; o < std::min(SIDE, outputs - first); o++) {
                const float* from = w + size(first + o) * channels + c;
                const auto some = [&](int at) {
                    const int left = std::clamp(channels - c - at, 0, SIDE);
                    return _mm512_maskz_loadu_ps((1u << left) - 1, from + at);
                };
                _mm512_store_si512(of_outputs + o * SIDE, __m512i(_mm512_cvtne2ps_pbh(some(SIDE), some(0))));
            }
            vec v[SIDE];
            load_columns<SIDE>(of_outputs, SIDE, v);
            UNROLLED for (int i = 0; i < SIDE; i++)
                if (i < rows) _mm512_storeu_si512(to + i * 2 * SIDE, __m512i(v[i]));
            to += rows * 2 * SIDE;
        }
}
NOINLINE void factors_of_outputs_of_one_tap(const float* w, int outputs, int all, int channels, int tiles, stored* to) {
    for (int first = 0; first < tiles * SIDE; first += SIDE) {
        const __mmask16 some = (1u << std::clamp(channels - first, 0, SIDE)) - 1;
        for (int o = 0; o < padded(outputs); o += 2, to += 2 * SIDE) {
            const auto of = [&](int o) {
                return narrowed(vec(_mm512_maskz_loadu_ps(o < outputs ? some : 0, w + size(o) * all + first)));
            };
            _mm512_storeu_si512(to, pairs(of(o), of(o + 1)));
        }
    }
}

// The inputs of each result of a convolution along both axes, and the positions of its taps.
struct Window {
    std::vector<Span> ys, xs;
    int width, kernel, step;  // of the images; of the kernel along x; from tap to tap
    Window(const Axis& y, const Axis& x, bool forward)
        : ys(spans(y, forward)), xs(spans(x, forward)), width(forward ? x.length : x.results), kernel(x.kernel),
          step(forward ? 1 : -x.stride) {}
};

// The products of a pixel, kept because many pixels have the same.
class Steps {
  public:
    Steps(const Window& window, size pixel, int depth, int depths)
        : window(window), pixel(pixel), depth(depth), depths(depths) {}
    const std::vector<Step>& of(const Span& y, const Span& x) {
        if (y.tap == y_tap && y.count == y_count && x.tap == x_tap && x.count == x_count) return steps;
        y_tap = y.tap, y_count = y.count, x_tap = x.tap, x_count = x.count;
        steps.clear();
        for (int i = 0; i < y.count; i++)
            for (int j = 0; j < x.count; j++) {
                const size from = (size(i) * window.width + j) * pixel;
                const size tap = (y.tap + i * window.step) * window.kernel + x.tap + j * window.step;
                for (int k = 0; k < depths; k++)
                    steps.push_back({from + k * depth, (tap * depths + k) * depth * SIDE});
            }
        return steps;
    }

  private:
    const Window& window;
    size pixel;
    int depth, depths, y_tap = -1, y_count = 0, x_tap = -1, x_count = 0;
    std::vector<Step> steps;
};

// For a bundle, one or two tiles of output planes in rows ``begin`` to ``end``, (pixels, images, width): sums over
// channels and taps, plus ``bias``. The factors are (tiles, taps, channels / 2, SIDE, 2).
NOINLINE void correlate(const Window& window, int begin, int end, const stored* from, int channels, int images,
                        const stored* factors, int taps, int tiles, const float* bias, stored* to, size width) {
    const int depth = channels % LANES ? SIDE : LANES;  // of a product
    const size pixel = size(images) * channels;
    Steps steps(window, pixel, depth, channels / depth);
    Product product{from, factors, size(SIDE) * channels, size(taps) * channels * SIDE, channels * 2, 64};
    alignas(64) float sums[2][LANES * LANES];  // of a pixel and of the previous one
    const Tiles registers(images, depth);
    with_tiles(images > SIDE ? 2 : 1, tiles, [&]<int ROWS, int COLUMNS>() {
        vec biases[COLUMNS];
        UNROLLED for (int c = 0; c < COLUMNS; c++) biases[c] = load(bias + c * SIDE);
        const float* sum = sums[1];
        int written = images;
        // Writing the previous pixel takes no extra time, as the products do not depend on it.
        const auto write = [&](int count) {
            for (const int end = std::min(images, written + count); written < end; written++, to += width)
                UNROLLED for (int c = 0; c < COLUMNS; c++)
                    store(to + c * SIDE, load(sum + written * LANES + c * SIDE) + biases[c]);
        };
        for (int row = begin; row < end; row++)
            for (const Span& x : window.xs) {
                const Span& y = window.ys[row];
                product.a = from + (size(y.source) * window.width + x.source) * pixel;
                each_sum<ROWS, COLUMNS>([]<int T>(int, int) { tile_zero<T>(); });
                const std::vector<Step>& products = steps.of(y, x);
                const int share = up(images, std::max<int>(1, products.size()));
                for (const Step& step : products) {
                    add_product<ROWS, COLUMNS>(product, step);
                    write(share);
                }
                write(images);
                float* now = sums[sum == sums[0]];
                each_sum<ROWS, COLUMNS>([&]<int T>(int r, int c) {
                    tile_store<T>(now + r * SIDE * LANES + c * SIDE, 4 * LANES);
                });
                sum = now, written = 0;
            }
        write(images);
    });
}

// Images (images, channels, height, width) of few channels to (height, columns, images, inputs), with the values
// under a kernel row as channels.
NOINLINE void gather(const Sizes& s, const stored* from, int images, stored* to) {
    const int plane = s.height * s.width, channels = s.channels;
    std::vector<stored> row((s.width + 2 * s.padding + 2 * LANES) * channels);  // of an image, channels interleaved
    __m512i sources[FEW];          // the source pixel of each of LANES values
    __mmask32 own[FEW][FEW] = {};  // which of them belong to a channel
    for (int part = 0; part < channels; part++) {
        alignas(64) std::uint16_t numbers[LANES];
        for (int j = 0; j < LANES; j++) {
            numbers[j] = (part * LANES + j) / channels;
            own[part][(part * LANES + j) % channels] |= 1u << j;
        }
        sources[part] = _mm512_load_si512(numbers);
    }
    for (int y = 0; y < s.height; y++, to += size(s.columns) * images * s.inputs)
        for (int i = 0; i < images; i++) {
            const stored* pixel = from + size(i) * channels * plane + y * s.width;
            for (int x = 0; x < s.width; x += LANES) {
                const __mmask32 inside = s.width - x < LANES ? (1u << (s.width - x)) - 1 : ~0u;
                __m512i planes[FEW];
                for (int c = 0; c < channels; c++)
                    planes[c] = _mm512_maskz_loadu_epi16(inside, pixel + c * plane + x);
                for (int part = 0; part < channels; part++) {
                    __m512i mixed{};
                    for (int c = 0; c < channels; c++)
                        mixed = _mm512_mask_permutexvar_epi16(mixed, own[part][c], sources[part], planes[c]);
                    _mm512_storeu_si512(row.data() + (s.padding + x) * channels + part * LANES, mixed);
                }
            }
            std::memset(row.data() + (s.padding + s.width) * channels, 0, s.padding * channels * sizeof(stored));
            for (int x = 0; x < s.columns; x++)
                for (int k = 0; k < s.inputs; k += SIDE) {
                    const __mmask16 some = s.used - k < SIDE ? (1u << (s.used - k)) - 1 : 0xffff;
                    const __m256i window = _mm256_maskz_loadu_epi16(some, row.data() + x * s.stride * channels + k);
                    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + (size(x) * images + i) * s.inputs + k), window);
                }
        }
}

// The index in an output's weights (channels, kernel, kernel) of a plane and tap of the output of `gather`.
inline int gathered_index(const Sizes& s, int plane, int tap) {
    return (plane % s.channels * s.kernel + tap) * s.kernel + plane / s.channels;
}

// Interleaves pairs of images of each pixel, (images, channels) to (images / 2, channels, 2), as second factors.
NOINLINE void pair_images(const stored* from, int pixels, int images, int channels, stored* to) {
    const size row = channels;
    for (int p = 0; p < pixels; p++, from += images * row, to += LANES * row)
        for (int i = 0; i < images; i += 2)
            for (int c = 0; c < channels; c += SIDE) {
                const stored* first = from + i * row + c;
                const __m256i second = i + 1 < images ? half(first + row) : __m256i{};
                _mm512_storeu_si512(to + i * row + 2 * c, pairs(half(first), second));
            }
}
// The same, transposed to (channels, LANES images), as first factors.
NOINLINE void transpose_images(const stored* from, int pixels, int images, int channels, stored* to) {
    const size row = channels;
    for (int p = 0; p < pixels; p++, from += images * row)
        for (int c = 0; c < channels; c += SIDE) {
            alignas(64) float pairs_of_images[SIDE * SIDE] = {};
            for (int i = 0; i < images; i += 2) {
                const stored* first = from + i * row + c;
                const __m256i second = i + 1 < images ? half(first + row) : __m256i{};
                _mm512_store_si512(pairs_of_images + i / 2 * SIDE, pairs(half(first), second));
            }
            vec v[SIDE];
            load_columns<SIDE>(pairs_of_images, SIDE, v);
            UNROLLED for (int j = 0; j < SIDE; j++, to += LANES) _mm512_storeu_si512(to, __m512i(v[j]));
        }
}

// Writes the gradients of an output and SIDE inputs under all taps, (taps, SIDE) with stride SIDE * SIDE, to its dw.
inline void write_gradients(const Sizes& s, const float* from, int first, float* dw) {
    const int taps = s.taps, some = std::min(SIDE, s.used - first);
    if (s.gathers)
        for (int tap = 0; tap < taps; tap++)
            for (int i = 0; i < some; i++) dw[gathered_index(s, first + i, tap)] = from[tap * SIDE * SIDE + i];
    else if (taps == 1)
        std::memcpy(dw + first, from, some * sizeof(float));
    else
        for (int tap = 0; tap < taps; tap += SIDE) {
            const int left = std::min(SIDE, taps - tap);
            vec v[SIDE];
            load_columns<SIDE>(from + tap * SIDE * SIDE, SIDE * SIDE, v);  // memory beyond the last tap is allocated
            UNROLLED for (int i = 0; i < SIDE; i++)
                if (i < some)
                    _mm512_mask_storeu_ps(dw + size(first + i) * taps + tap, (1u << left) - 1, __m512(v[i]));
        }
}

constexpr int SECOND_LEVEL = 1 << 20;  // bytes of the L2 cache for data that are reused

// For each tap, the products of rows ``begin`` to ``end`` of dz with rows of x from ``x_begin`` on.
inline std::vector<std::vector<Step>> steps_of_taps(const Sizes& s, int begin, int end, int x_begin) {
    std::vector<std::vector<Step>> all;
    for (int ky = 0; ky < s.y.kernel; ky++)
        for (int kx = 0; kx < s.x.kernel; kx++) {
            const Range ys = under_tap(s.y, ky, begin, end), xs = under_tap(s.x, kx, 0, s.columns);
            std::vector<Step>& steps = all.emplace_back();
            for (int y = ys.first; y < ys.first + ys.count; y++)
                for (int x = xs.first; x < xs.first + xs.count; x++) {
                    const size of_dz = size(y - begin) * s.columns + x;
                    const size of_x = size(y * s.y.stride + ky - s.y.padding - x_begin) * s.x.length
                                      + x * s.x.stride + kx - s.x.padding;
                    steps.push_back({of_dz * LANES * s.results, of_x * LANES * s.inputs});
                }
        }
    return all;
}

// dw (outputs, channels, kernel, kernel), given the input x of n images and ``rows(first image, images, begin, end)``
// of dz. The rows are processed in parts that fit into the L2 cache.
NOINLINE void weight_gradients(const Sizes& s, const stored* x, int n, auto rows, float* dw) {
    static thread_local Scratch<stored> transposed, paired;
    static thread_local Scratch<float> totals;
    const int ins = s.inputs / SIDE, outs = s.results / SIDE, block_size = s.taps * SIDE * SIDE;
    const size x_row = size(s.x.length) * s.inputs, dz_row = size(s.columns) * s.results;  // of an image
    int chunk = s.rows;
    const auto bytes = [&] {
        const int x_rows = std::min((chunk - 1) * s.stride + s.kernel, s.height);
        return (chunk * dz_row + x_rows * x_row) * LANES * sizeof(stored);
    };
    while (chunk > 2 && bytes() > SECOND_LEVEL) chunk -= 2 - chunk % 2;  // even, as pooling windows may be
    const bool once = n <= LANES && chunk == s.rows;                      // otherwise sums are kept between parts
    const bool in_place = s.taps == 1 && !s.gathers && s.outputs % SIDE == 0 && s.channels % SIDE == 0;  // sums in dw
    const size sum_stride = in_place ? s.channels * 4 : 4 * SIDE;
    const size blocks = once ? 4 : size(outs + 1) / 2 * ((ins + 1) / 2) * 4;
    each_bundle(n, [&](int first, int images) {
        for (int begin = 0; begin < s.rows; begin += chunk) {
            const int end = std::min(begin + chunk, s.rows), x_begin = std::max(0, begin * s.stride - s.padding);
            const int x_end = std::clamp((end - 1) * s.stride - s.padding + s.kernel, x_begin, s.height);
            stored* a = transposed.of((end - begin) * dz_row * LANES);
            stored* b = paired.of((x_end - x_begin) * x_row * LANES);
            transpose_images(rows(first, images, begin, end), (end - begin) * s.columns, images, s.results, a);
            pair_images(x + first * s.of_input() + x_begin * x_row * images, (x_end - x_begin) * s.x.length, images,
                        s.inputs, b);
            const auto steps = steps_of_taps(s, begin, end, x_begin);
            const bool begun = first > 0 || begin > 0, last = first + images == n && end == s.rows;
            float* kept = totals.of(blocks * block_size + SIDE * SIDE * SIDE);
            const Tiles registers(LANES, images);
            for (int o = 0; o < outs; o += 2)
                for (int i = 0; i < ins; i += 2, kept += once ? 0 : 4 * block_size)
                    with_tiles(outs - o, ins - i, [&]<int ROWS, int COLUMNS>() {
                        const Product product{a + o * SIDE * LANES, b + i * SIDE * 2, SIDE * LANES, SIDE * 2,
                                              2 * LANES, s.inputs * 4};
                        for (int tap = 0; tap < s.taps; tap++) {
                            const auto sum = [&](int r, int c) {
                                return in_place ? dw + (size(o + r) * s.channels + i + c) * SIDE
                                                : kept + (2 * r + c) * block_size + tap * SIDE * SIDE;
                            };
                            each_sum<ROWS, COLUMNS>([&]<int T>(int r, int c) {
                                begun ? tile_load<T>(sum(r, c), sum_stride) : tile_zero<T>();
                            });
                            for (const Step& step : steps[tap]) add_product<ROWS, COLUMNS>(product, step);
                            each_sum<ROWS, COLUMNS>([&]<int T>(int r, int c) { tile_store<T>(sum(r, c), sum_stride); });
                        }
                        if (!last || in_place) return;
                        for (int r = 0; r < std::min(ROWS * SIDE, s.outputs - o * SIDE); r++)
                            for (int c = 0; c < COLUMNS; c++) {
                                const float* from = kept + (r / SIDE * 2 + c) * block_size + r % SIDE * SIDE;
                                float* output = dw + (size(o) * SIDE + r) * s.channels * s.kernel * s.kernel;
                                write_gradients(s, from, (i + c) * SIDE, output);
                            }
                    });
        }
    });
}

// ---- Batch norm, ReLU and pooling. Lanes are channels.

inline vec greater(vec x, vec y) { return (x > y) | (x != x) ? x : y; }  // NaN wins, as in torch

// For a bundle, out = the maximum of each window of relu(z * scale + shift + residual)
template <int POOL>
NOINLINE void finish(const Sizes& s, const stored* z, const float* scales, const float* shifts, const stored* residual,
                      stored* out, int images) {
    const vec least = all(s.relu ? 0 : -std::numeric_limits<float>::infinity());
    const auto rectified = [&](vec value) { return value < least ? least : value; };
    const int width = s.results;
    const size pixel = size(images) * width;
    if (!s.pool) {
        for (size row = 0; row < s.pixels * pixel; row += width)
            for (int c = 0; c < width; c += SIDE) {
                const vec value = load(z + row + c) * load(scales + c) + load(shifts + c);
                store(out + row + c, rectified(residual ? value + load(residual + row + c) : value));
            }
        return;
    }
    each_window<POOL>(s, [&](int p, int y0, int y1, int x0, int x1) {
        for (size row = 0; row < pixel; row += width)
            for (int c = 0; c < width; c += SIDE) {
                const vec scale = load(scales + c), shift = load(shifts + c);
                vec best = all(-std::numeric_limits<float>::infinity());
                UNROLLED for (int y = y0; y < y1; y++)
                    UNROLLED for (int x = x0; x < x1; x++)
                        best = greater(load(z + size(y * s.columns + x) * pixel + row + c) * scale + shift, best);
                store(out + p * pixel + row + c, rectified(best));
            }
    });
}

// For a bundle, gradients g of the input of the ReLU in `finish`, given those of ``out``; sums g and g * (z - mean).
template <int POOL>
NOINLINE void begin_backward(const Sizes& s, const stored* dout, const stored* z, const float* scales,
                              const float* shifts, const float* means, const stored* out, stored* g, float* totals,
                              float* products, int images) {
    const vec least = all(s.relu ? 0 : -std::numeric_limits<float>::infinity());
    const int width = s.results;
    const size pixel = size(images) * width;
    if (!s.pool) {
        for (int p = 0; p < s.pixels; p++)
            for (int c = 0; c < width; c += SIDE) {
                vec total{}, product{};
                const vec mean = load(means + c);
                for (size at = p * pixel + c; at < (p + 1) * pixel; at += width) {
                    const vec gradient = load(out + at) > least ? load(dout + at) : vec{};
                    store(g + at, gradient);
                    total += gradient;
                    product += gradient * (load(z + at) - mean);
                }
                store(totals + c, load(totals + c) + total);
                store(products + c, load(products + c) + product);
            }
        return;
    }
    // Windows of 2x2 cover everything except perhaps an edge.
    if (POOL == 0 || s.rows % 2 || s.columns % 2) std::memset(g, 0, s.pixels * pixel * sizeof(stored));
    each_window<POOL>(s, [&](int p, int y0, int y1, int x0, int x1) {
        for (int c = 0; c < width; c += SIDE) {
            const vec scale = load(scales + c), shift = load(shifts + c), mean = load(means + c);
            vec total{}, product{};
            for (size row = c; row < pixel; row += width) {
                const vec best = load(out + p * pixel + row);
                vec left = best > least ? load(dout + p * pixel + row) : vec{};
                total += left;
                UNROLLED for (int y = y0; y < y1; y++)
                    UNROLLED for (int x = x0; x < x1; x++) {
                        const size at = size(y * s.columns + x) * pixel + row;
                        const vec value = load(z + at), taken = rounded(value * scale + shift) == best ? left : vec{};
                        left -= taken;  // the first of equal maxima takes the gradient, as in torch
                        store(g + at, POOL ? taken : load(g + at) + taken);
                        product += taken * (value - mean);
                    }
            }
            store(totals + c, load(totals + c) + total);
            store(products + c, load(products + c) + product);
        }
    });
}

// Blocks without batch norm keep the place of the maximum of each 2x2 window instead of all its values.
inline bool keeps_places(const Sizes& s) { return s.pools_2x2() && !s.norm && s.relu; }
constexpr int NOWHERE = 4;  // the place if ReLU gives zero

// Pools two rows of the convolution, (2 * columns, images, SIDE * tiles), to a row of out and of places (.., width).
NOINLINE void pool(const Sizes& s, const stored* z, int images, int tiles, stored* out, std::uint8_t* places) {
    const size pixel = size(images) * tiles * SIDE, down = s.columns * pixel;
    for (int x = 0; x < s.pooled_columns; x++, z += 2 * pixel)
        for (int i = 0; i < images; i++, out += s.results, places += s.results)
            for (int c = 0; c < tiles * SIDE; c += SIDE) {
                const stored* at = z + i * tiles * SIDE + c;
                vec best = load(at);
                integers place{};
                UNROLLED for (int k = 1; k < 4; k++) {
                    const vec chosen = greater(load(at + k / 2 * down + k % 2 * pixel), best);
                    place = chosen == best ? place : integers{} + k;
                    best = chosen;
                }
                place = best > 0 ? place : integers{} + NOWHERE;
                store(out + c, best < 0 ? vec{} : best);
                _mm_storeu_si128(reinterpret_cast<__m128i*>(places + c), _mm512_cvtepi32_epi8(__m512i(place)));
            }
}

// For a bundle, rows ``begin`` to ``end`` of dz, given the gradients of out; sums dz.
NOINLINE void unpool(const Sizes& s, const stored* dout, const std::uint8_t* places, int images, int begin, int end,
                     stored* dz, float* totals) {
    const size width = s.results, pixel = images * width;
    const int first = begin / 2, last = std::min(s.pooled_rows, end / 2);
    if (s.columns % 2 || 2 * last < end) std::memset(dz, 0, (end - begin) * s.columns * pixel * sizeof(stored));
    for (int y = first; y < last; y++)
        for (int x = 0; x < s.pooled_columns; x++) {
            const size from = (size(y) * s.pooled_columns + x) * pixel;
            stored* to = dz + (size(2 * y - begin) * s.columns + 2 * x) * pixel;
            for (int c = 0; c < width; c += SIDE) {
                vec total{};
                for (size at = c; at < pixel; at += width) {
                    const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(places + from + at));
                    const integers place = integers(_mm512_cvtepu8_epi32(bytes));
                    const vec gradient = load(dout + from + at);
                    UNROLLED for (int k = 0; k < 4; k++)
                        store(to + (k / 2 * s.columns + k % 2) * pixel + at, place == k ? gradient : vec{});
                    total += place < NOWHERE ? gradient : vec{};
                }
                store(totals + c, load(totals + c) + total);
            }
        }
}

// For a bundle, turns the gradients g of the output of batch norm into those of z, and sums them.
NOINLINE void through_norm(const Sizes& s, const stored* z, const float* scales, const float* slopes,
                           const float* offsets, int images, stored* g, float* totals) {
    const size width = s.results, pixel = images * width;
    for (int p = 0; p < s.pixels; p++)
        for (int c = 0; c < width; c += SIDE) {
            const vec scale = load(scales + c), slope = load(slopes + c), offset = load(offsets + c);
            vec total{};
            for (size at = p * pixel + c; at < (p + 1) * pixel; at += width) {
                const vec gradient = load(g + at) * scale + load(z + at) * slope + offset;
                store(g + at, gradient);
                total += gradient;
            }
            store(totals + c, load(totals + c) + total);
        }
}

// For a bundle, adds ``value(z, first channel)`` of all pixels and images to sums (width,).
inline void add_up(const stored* z, int pixels, int images, int width, float* sums, auto value) {
    for (int p = 0; p < pixels; p++, z += size(images) * width)
        for (int c = 0; c < width; c += SIDE) {
            vec total{};
            for (int i = 0; i < images; i++) total += value(load(z + size(i) * width + c), c);
            store(sums + c, load(sums + c) + total);
        }
}

}  // namespace

extern "C" {

// Requests the tile registers from the system; returns whether the process has them.
int available() {
    constexpr int REQUEST = 0x1023, TILE_DATA = 18;
    return syscall(SYS_arch_prctl, REQUEST, TILE_DATA) == 0;
}

// Number of values in bundles of images, and in those that `pack` writes for a block.
std::int64_t numbers(int n, int channels, int height, int width) {
    return std::int64_t(n) * padded(channels) * height * width;
}
std::int64_t packed_numbers(const Shape& shape, int n) { return n * Sizes(shape).of_input(); }

// Converts images (n, channels, height, width) to the input of a block, and bundles to images.
void pack(const Shape& shape, const stored* images, stored* bundles, int n) {
    const Sizes s(shape);
    const int pixels = s.height * s.width;
    each_bundle(n, [&](int first, int some) {
        const stored* from = images + size(first) * s.channels * pixels;
        stored* to = bundles + first * s.of_input();
        if (s.gathers) return gather(s, from, some, to);
        std::memset(to, 0, sizeof(stored) * some * s.of_input());
        for (int p = 0; p < pixels; p++)
            for (int i = 0; i < some; i++, to += s.inputs)
                copy(from + size(i) * s.channels * pixels + p, pixels, s.channels, to, 1);
    });
}
void unpack(const stored* bundles, stored* images, int n, int channels, int height, int width) {
    const int pixels = height * width, row = padded(channels);
    each_bundle(n, [&](int first, int some) {
        const stored* from = bundles + size(first) * row * pixels;
        for (int p = 0; p < pixels; p++)
            for (int i = 0; i < some; i++, from += row)
                copy(from, 1, channels, images + size(first + i) * channels * pixels + p, pixels);
    });
}

// z is the convolution or, if the block `keeps_places`, the places. moments (3, outputs): mean of z, inverse of its
// standard deviation, and the shift of scaled z. With ``training``, the moments are the batch's, and the running ones
// are updated; otherwise they are the running ones.
// bias and residual may be null; gamma to running_var are null without batch norm.
void forward(const Shape& shape, const stored* x, const float* w, const float* bias, const float* gamma,
             const float* beta, const stored* residual, float* running_mean, float* running_var, double momentum,
             double eps, int training, stored* z, float* moments, stored* out, int n) {
    const Sizes s(shape);
    static thread_local Scratch<stored> factors, transposed, rows;
    static thread_local Scratch<float> ordered, of_channels;
    const int width = s.results, weights = s.used * s.taps;
    if (s.gathers) {
        float* to = ordered.of(size(s.outputs) * weights);
        for (const float *output = w, *end = w + size(s.outputs) * weights; output < end; output += weights)
            for (int plane = 0; plane < s.used; plane++)
                for (int tap = 0; tap < s.taps; tap++) *to++ = output[gathered_index(s, plane, tap)];
        w = to - size(s.outputs) * weights;
    }
    float* scales = of_channels.of(5 * width);
    std::fill(scales, scales + 5 * width, 0.0f);
    float *shifts = scales + width, *means = shifts + width, *variances = means + width, *biases = variances + width;
    if (bias) std::memcpy(biases, bias, s.outputs * sizeof(float));
    const Window window(s.y, s.x, true);
    for (int o = 0; o < width; o += LANES) {  // the factors of two tiles stay in the L2 cache
        const int tiles = std::min(2, (width - o) / SIDE);
        stored* of_outputs = transposed.of(size(LANES) * weights);
        stored* of_taps = factors.of(size(LANES) * s.inputs * s.taps);
        if (s.taps == 1) {
            factors_of_channels_of_one_tap(w + size(o) * weights, s.outputs - o, s.used, tiles, of_taps);
        } else {
            transpose_weights(w + size(o) * weights, weights, std::min(LANES, s.outputs - o), weights, of_outputs);
            factors_of_channels(of_outputs, tiles, s.used, s.taps, of_taps);
        }
        each_bundle(n, [&](int first, int images) {
            const auto convolve = [&](int begin, int end, stored* to, int to_width) {
                correlate(window, begin, end, x + first * s.of_input(), s.inputs, images, of_taps, s.taps, tiles,
                          biases + o, to, to_width);
            };
            if (!keeps_places(s)) return convolve(0, s.rows, z + size(first) * s.pixels * width + o, width);
            stored* two = rows.of(size(2) * s.columns * images * tiles * SIDE);
            for (int y = 0; y < s.pooled_rows; y++) {
                const size at = (size(first) * s.pooled_rows + y * images) * s.pooled_columns * width + o;
                convolve(2 * y, 2 * y + 2, two, tiles * SIDE);
                pool(s, two, images, tiles, out + at, reinterpret_cast<std::uint8_t*>(z) + at);
            }
        });
    }
    if (keeps_places(s)) return;
    const auto finish_bundle = [&](int first, int images) {
        (s.pools_2x2() ? finish<2> : finish<0>)(
            s, z + size(first) * s.pixels * width, scales, shifts,
            residual ? residual + size(first) * s.pixels * width : nullptr,
            out + size(first) * s.pooled_rows * s.pooled_columns * width, images);
    };
    const bool of_batch = s.norm && training;
    const auto set_moments = [&](int o, float mean, float variance) {
        const float deviation = 1 / std::sqrt(variance + float(eps));
        scales[o] = gamma[o] * deviation;
        shifts[o] = beta[o] - mean * scales[o];
        moments[o] = mean;
        moments[s.outputs + o] = deviation;
        moments[2 * s.outputs + o] = shifts[o];
    };
    if (!s.norm) std::fill(scales, scales + s.outputs, 1.0f);
    if (s.norm && !training)
        for (int o = 0; o < s.outputs; o++) set_moments(o, running_mean[o], running_var[o]);
    each_bundle(n, [&](int first, int images) {
        if (of_batch)
            add_up(z + size(first) * s.pixels * width, s.pixels, images, width, means,
                   [](vec value, int) { return value; });
        else
            finish_bundle(first, images);
    });
    if (!of_batch) return;
    const float count = float(n) * s.pixels;
    for (int c = 0; c < width; c++) means[c] /= count;
    each_bundle(n, [&](int first, int images) {
        add_up(z + size(first) * s.pixels * width, s.pixels, images, width, variances, [&](vec value, int c) {
            const vec centred = value - load(means + c);
            return centred * centred;
        });
    });
    for (int o = 0; o < s.outputs; o++) {
        running_mean[o] += float(momentum) * (means[o] - running_mean[o]);
        running_var[o] += float(momentum) * (variances[o] / (count - 1) - running_var[o]);
        set_moments(o, means[o], variances[o] / count);
    }
    each_bundle(n, finish_bundle);
}

// Gradients of everything, given those of ``out``; dx, dbias and dresidual may be null.
void backward(const Shape& shape, const stored* dout, const stored* x, const float* w, const float* gamma,
              const stored* z, const float* moments, const stored* out, int training, stored* dx, float* dw,
              float* dbias, float* dgamma, float* dbeta, stored* dresidual, int n) {
    const Sizes s(shape);
    static thread_local Scratch<stored> factors, transposed, gradients;
    static thread_local Scratch<float> of_channels;
    const int width = s.results, inputs = padded(s.channels), taps = s.kernel * s.kernel;
    const size z_image = size(s.pixels) * width, out_image = size(s.pooled_rows) * s.pooled_columns * width;
    float* scales = of_channels.of(7 * width);
    std::fill(scales, scales + 7 * width, 0.0f);
    float *shifts = scales + width, *means = shifts + width, *totals = means + width, *products = totals + width,
          *slopes = products + width, *offsets = slopes + width;
    const bool in_parts = keeps_places(s) && !dx;  // all of dz is never needed at once
    stored* dz = gradients.of(in_parts ? LANES * z_image : n * z_image);
    const auto unpooled = [&](int first, int images, int begin, int end, stored* to) {
        const auto* places = reinterpret_cast<const std::uint8_t*>(z);
        unpool(s, dout + first * out_image, places + first * out_image, images, begin, end, to, totals);
    };
    if (keeps_places(s)) {
        if (dx)
            each_bundle(n, [&](int first, int images) { unpooled(first, images, 0, s.rows, dz + first * z_image); });
    } else {
        for (int o = 0; o < s.outputs; o++) {
            scales[o] = s.norm ? gamma[o] * moments[s.outputs + o] : 1;
            shifts[o] = s.norm ? moments[2 * s.outputs + o] : 0;
            means[o] = s.norm ? moments[o] : 0;
        }
        each_bundle(n, [&](int first, int images) {
            (s.pools_2x2() ? begin_backward<2> : begin_backward<0>)(
                s, dout + first * out_image, z + first * z_image, scales, shifts, means, out + first * out_image,
                dz + first * z_image, totals, products, images);
        });
    }
    if (dresidual) std::memcpy(dresidual, dz, n * z_image * sizeof(stored));
    if (s.norm) {
        const float count = float(n) * s.pixels;
        for (int o = 0; o < s.outputs; o++) {
            const float deviation = moments[s.outputs + o];
            dbeta[o] = totals[o];
            dgamma[o] = products[o] *= deviation;
            slopes[o] = training ? -scales[o] * products[o] * deviation / count : 0;
            offsets[o] = training ? -scales[o] * totals[o] / count - slopes[o] * means[o] : 0;
            totals[o] = 0;
        }
        each_bundle(n, [&](int first, int images) {
            through_norm(s, z + first * z_image, scales, slopes, offsets, images, dz + first * z_image, totals);
        });
    }
    weight_gradients(s, x, n, [&](int first, int images, int begin, int end) -> const stored* {
        if (!in_parts) return dz + first * z_image + size(begin) * s.columns * images * width;
        unpooled(first, images, begin, end, dz);
        return dz;
    }, dw);
    if (dbias) std::memcpy(dbias, totals, s.outputs * sizeof(float));
    if (!dx) return;
    const Planes planes(shape);
    const Window window(planes.y, planes.x, false);
    const std::vector<float> nothing(LANES);
    for (int c = 0; c < inputs; c += LANES) {
        const int tiles = std::min(2, (inputs - c) / SIDE), some = std::min(LANES, s.channels - c);
        stored* of_outputs = transposed.of(size(width) * some * taps);
        stored* of_taps = factors.of(size(LANES) * taps * width);
        if (taps == 1) {
            factors_of_outputs_of_one_tap(w + c, s.outputs, s.channels, some, tiles, of_taps);
        } else {
            transpose_weights(w + size(c) * taps, size(s.channels) * taps, s.outputs, some * taps, of_outputs);
            factors_of_outputs(of_outputs, width / SIDE, some, taps, of_taps);
        }
        each_bundle(n, [&](int first, int images) {
            correlate(window, 0, s.height, dz + first * z_image, width, images, of_taps, taps, tiles, nothing.data(),
                      dx + size(first) * s.height * s.width * inputs + c, inputs);
        });
    }
}
}

// Shared by conv_block.cpp and conv_tiles.cpp: a block's sizes, and which pixels depend on which.
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

extern "C" {
// A block, as in conv_block.py. pool is 0 without pooling; images is 1 if the input comes from `pack`.
struct Shape {
    int channels, height, width, outputs, kernel, stride, padding, norm, relu, pool, pool_stride, pool_padding, images;
};
}

namespace {

typedef std::ptrdiff_t size;

inline int up(int a, int b) { return a >= 0 ? (a + b - 1) / b : -(-a / b); }
inline int down(int a, int b) { return a >= 0 ? a / b : -up(-a, b); }

// A convolution along one axis, from ``length`` pixels to ``results``.
struct Axis {
    int length, results, kernel, stride, padding;
};

// The ``count`` positions from ``source`` on that a position of a result depends on. The first is under ``tap`` of
// the kernel; from each to the next, the tap changes by 1 (forward) or by minus the stride (backward).
struct Span {
    int tap, source, count;
};
// Input positions for a position of the convolution.
inline Span forward_span(const Axis& axis, int at) {
    const int tap = std::max(0, axis.padding - at * axis.stride);
    const int source = at * axis.stride - axis.padding + tap;
    return {tap, source, std::min(axis.kernel, axis.length + axis.padding - at * axis.stride) - tap};
}
// Positions of the convolution's gradient for a position of the input's gradient.
inline Span backward_span(const Axis& axis, int at) {
    const int first = std::max(0, up(at + axis.padding - axis.kernel + 1, axis.stride));
    const int last = std::min(axis.results - 1, down(at + axis.padding, axis.stride));
    return {at + axis.padding - first * axis.stride, first, last - first + 1};
}
inline std::vector<Span> spans(const Axis& axis, bool forward) {
    std::vector<Span> all;
    for (int at = 0; at < (forward ? axis.results : axis.length); at++)
        all.push_back(forward ? forward_span(axis, at) : backward_span(axis, at));
    return all;
}

// The positions of the convolution from ``begin`` to ``end`` whose input under ``tap`` is inside the image.
struct Range {
    int first, count;
};
inline Range under_tap(const Axis& axis, int tap, int begin, int end) {
    const int first = std::max(begin, up(axis.padding - tap, axis.stride));
    return {first, std::min(end, down(axis.length - 1 + axis.padding - tap, axis.stride) + 1) - first};
}

// Heights and widths of a block, and its convolution along both axes.
struct Planes : Shape {
    int rows, columns, pooled_rows, pooled_columns, pixels, taps;
    Axis y, x;
    explicit Planes(const Shape& shape) : Shape(shape) {
        rows = (height + 2 * padding - kernel) / stride + 1;
        columns = (width + 2 * padding - kernel) / stride + 1;
        pooled_rows = pool ? (rows + 2 * pool_padding - pool) / pool_stride + 1 : rows;
        pooled_columns = pool ? (columns + 2 * pool_padding - pool) / pool_stride + 1 : columns;
        pixels = rows * columns;
        taps = kernel * kernel;
        y = {height, rows, kernel, stride, padding};
        x = {width, columns, kernel, stride, padding};
    }
    bool pools_2x2() const { return pool == 2 && pool_stride == 2 && pool_padding == 0; }
};

// Calls ``work(output pixel, first row, end, first column, end)`` for each window; with SIDE, none is cut off.
template <int SIDE, class Work>
inline void each_window(const Planes& s, Work work) {
    for (int y = 0, p = 0; y < s.pooled_rows; y++) {
        const int y0 = y * s.pool_stride - s.pool_padding, y1 = std::min(s.rows, y0 + s.pool);
        for (int x = 0; x < s.pooled_columns; x++, p++) {
            const int x0 = x * s.pool_stride - s.pool_padding, x1 = std::min(s.columns, x0 + s.pool);
            if constexpr (SIDE > 0)
                work(p, y0, y0 + SIDE, x0, x0 + SIDE);
            else
                work(p, std::max(0, y0), y1, std::max(0, x0), x1);
        }
    }
}

}  // namespace

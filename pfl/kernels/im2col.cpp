// The images of a convolution as the rows of a matrix, and their gradient from that of the rows, in bfloat16.
//
// Channels are innermost. A row holds the pixels under the kernel at one position, tap by tap; the taps of one
// kernel row are contiguous in the image as well.

#pragma GCC optimize("O3")  // vectorises plain loops; clang does so anyway

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

using bf16 = std::uint16_t;

extern "C" {
// As in im2col.py; the images are padded by half the kernel size.
struct Shape {
    int images, height, width, channels, rows, columns, kernel, stride;
};
}

namespace {

// The bits of ``value`` as another type; std::bit_cast needs g++ 11.
template <class To, class From>
inline To bits_as(From value) {
    To same;
    std::memcpy(&same, &value, sizeof same);
    return same;
}

inline float widened(bf16 value) { return bits_as<float>(std::uint32_t(value) << 16); }

// Rounds to nearest, ties to even, like torch.
inline bf16 narrowed(float value) {
    const auto bits = bits_as<std::uint32_t>(value);
    return value == value ? (bits + 0x7fff + (bits >> 16 & 1)) >> 16 : 0x7fc0;
}

// Calls ``work(first, last, pixel)`` for each kernel row at each position of an image: its values ``first`` to
// ``last`` lie in the image, from ``pixel`` on; none do if first == last.
template <class Work>
inline void each_row_of_taps(const Shape& shape, Work work) {
    const auto& [images, height, width, channels, rows, columns, kernel, stride] = shape;
    const int padding = kernel / 2;
    for (int row = 0; row < rows; row++)
        for (int column = 0; column < columns; column++)
            for (int tap = 0; tap < kernel; tap++) {
                const int y = row * stride + tap - padding, x = column * stride - padding;
                const bool inside = y >= 0 && y < height;
                const int first = inside ? std::max(0, -x) : 0;
                const int last = inside ? std::max(first, std::min(kernel, width - x)) : 0;
                work(first * channels, last * channels, (std::ptrdiff_t(y) * width + x + first) * channels);
            }
}

}  // namespace

extern "C" void im2col(const Shape& shape, const bf16* images, bf16* rows) {
    const std::ptrdiff_t image = std::ptrdiff_t(shape.height) * shape.width * shape.channels;
    const int numbers = shape.kernel * shape.channels;
    for (int i = 0; i < shape.images; i++, images += image)
        each_row_of_taps(shape, [&](int first, int last, std::ptrdiff_t pixel) {
            std::fill(rows, rows + first, 0);
            if (first < last) std::copy(images + pixel, images + pixel + (last - first), rows + first);
            std::fill(rows + last, rows + numbers, 0);
            rows += numbers;
        });
}

extern "C" void col2im(const Shape& shape, const bf16* rows, bf16* images) {
    const std::ptrdiff_t image = std::ptrdiff_t(shape.height) * shape.width * shape.channels;
    const int numbers = shape.kernel * shape.channels;
    std::vector<float> sums(image);
    for (int i = 0; i < shape.images; i++, images += image) {
        std::fill(sums.begin(), sums.end(), 0.0f);
        each_row_of_taps(shape, [&](int first, int last, std::ptrdiff_t pixel) {
            if (first < last) {
                float* to = sums.data() + pixel;
                for (int k = 0; k < last - first; k++) to[k] += widened(rows[first + k]);
            }
            rows += numbers;
        });
        for (std::ptrdiff_t k = 0; k < image; k++) images[k] = narrowed(sums[k]);
    }
}

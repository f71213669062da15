// Rows of a file, read one after another without interpreter overhead.

#include <cstdint>
#include <unistd.h>

// Reads ``n`` rows of ``size`` bytes to ``out``; returns whether all were complete.
extern "C" int read_rows(int file, const std::int64_t* rows, std::int64_t n, std::int64_t size, char* out) {
    for (std::int64_t i = 0; i < n; i++)
        if (pread(file, out + i * size, size, rows[i] * size) != size) return 0;
    return 1;
}

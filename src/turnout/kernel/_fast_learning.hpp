// Applies the Sherman-Morrison update to the regressions of the selected clients, in place. The
// equivalent in NumPy is ExchangeTimeModel._rank_one_update; the operations have the same order,
// so that rounding is identical.

#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "_fast_threads.hpp"
#include "_fast_vector.hpp"

namespace turnout {

// Without the sign bit, the bit patterns of doubles have the same order as the numbers, and infinity
// and NaN have the largest.
TURNOUT_VECTOR static int64_t largest_bits(const double* numbers, int64_t count) {
    int64_t largest = 0;
    for (int64_t i = 0; i < count; ++i) {
        int64_t bits;
        std::memcpy(&bits, numbers + i, sizeof bits);
        bits &= std::numeric_limits<int64_t>::max();
        largest = bits > largest ? bits : largest;
    }
    return largest;
}

// Returns the largest absolute value; infinity or NaN if not all values are finite.
inline double magnitude(const double* numbers, int64_t count, int threads) {
    std::vector<int64_t> largest(threads);
    in_parallel(threads, [&](int part) {
        const int64_t start = count * part / threads;
        largest[part] = largest_bits(numbers + start, count * (part + 1) / threads - start);
    });
    double result;
    std::memcpy(&result, &*std::max_element(largest.begin(), largest.end()), sizeof result);
    return result;
}

struct Lessons {
    double* bank;  // features-major: upper triangle of the inverse of H, then theta-hat
    int64_t clients;
    int features;
    const int64_t* rows;
    int64_t count;
    const double* contexts;  // (count, features), any strides
    int64_t context_row_stride;
    int64_t context_feature_stride;
    const double* times;
};

inline void learn(const Lessons& lessons) {
    const int features = lessons.features;
    std::vector<double> context(features), gain(features);
    for (int64_t i = 0; i < lessons.count; ++i) {
        double* const column = lessons.bank + lessons.rows[i];
        double* const theta = column + features * (features + 1) / 2 * lessons.clients;
        for (int f = 0; f < features; ++f) {
            context[f] = lessons.contexts[i * lessons.context_row_stride + f * lessons.context_feature_stride];
            gain[f] = 0.0;
        }
        const double* inverse = column;
        for (int a = 0; a < features; ++a)
            for (int b = a; b < features; ++b, inverse += lessons.clients) {
                gain[a] += *inverse * context[b];
                if (a != b) gain[b] += *inverse * context[a];
            }
        double growth = 1.0, surprise = lessons.times[i];
        for (int f = 0; f < features; ++f) {
            growth += context[f] * gain[f];
            surprise -= theta[f * lessons.clients] * context[f];
        }
        double* updated = column;
        for (int a = 0; a < features; ++a)
            for (int b = a; b < features; ++b, updated += lessons.clients) *updated -= gain[a] * gain[b] / growth;
        for (int f = 0; f < features; ++f) theta[f * lessons.clients] += gain[f] * (surprise / growth);
    }
}

// Adds 1 to the counts whose flag is 1; the other flags are 0. Few devices check in at a time, so most blocks of flags
// are 0, and their counts need not be read.
TURNOUT_VECTOR static void count_flags(int64_t* TURNOUT_RESTRICT counts, const uint8_t* TURNOUT_RESTRICT flags, int64_t count) {
    constexpr int64_t BLOCK = 256;
    for (int64_t start = 0; start < count; start += BLOCK) {
        const int64_t end = std::min(start + BLOCK, count);
        uint8_t any = 0;
        for (int64_t i = start; i < end; ++i) any |= flags[i];
        if (any == 0) continue;
        for (int64_t i = start; i < end; ++i) counts[i] += flags[i];
    }
}

}  // namespace turnout

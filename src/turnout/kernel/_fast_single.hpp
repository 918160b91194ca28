// Checks without divisions whether a block of clients can change a decision about one place.
//
// A client matters if it is urgent, if its price exceeds the largest one so far, or if its time
// minus its price may be less than the least one so far. A price is a quotient; the comparisons
// multiply by its denominator instead. Their rounding is covered by a margin, so that a block
// without such a client certainly has none. In a large fleet nearly all blocks are such blocks,
// and only the others need the exact computation.

#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#include "_fast_vector.hpp"

namespace turnout {

// Integers below this one are exact as floating-point numbers.
constexpr double kExactInteger = 4503599627370496.0;  // 2^52
// The margin, as a share of the largest price and of the least objective: far more than all rounding.
constexpr double kSingleMargin = 1e-9;

// The arrays of a block, for three features.
struct SingleArrays {
    const double* contexts[3];
    const double* theta[3];
    const double* sums[3];
    const double* weights;
    const int64_t* rounds;
    const int64_t* ages;
    const int32_t* turns;
    const double* losses;  // or null
    const int64_t* available;  // -1 or 0
};

// What holds for all clients.
struct SingleTerms {
    double mean[3];
    double rate;
    double units_per_turn;
    double allowed;
    double per_unit;  // a price is the usual time / (weight * (room + head_start) * per_unit) + loss * loss_price
    double full;  // room is slack, of which the part beyond this one counts by fleet_age / (settling + age)
    double fleet_age;
    double settling;
    double head_start;
    double loss_price;
};

// How many of the flags, each 0 or 1, are set.
enum class Flags { kNone, kSome, kAll };

// Turns flags into integers of 0 and -1, unless none or all of them are set.
TURNOUT_VECTOR static Flags widen_flags(const uint8_t* TURNOUT_RESTRICT flags, int64_t count, int64_t* TURNOUT_RESTRICT wide) {
    uint8_t any = 0, all = 1;
    for (int64_t i = 0; i < count; ++i) any |= flags[i], all &= flags[i];
    if (!any || all) return any ? Flags::kAll : Flags::kNone;
    for (int64_t i = 0; i < count; ++i) wide[i] = -static_cast<int64_t>(flags[i]);
    return Flags::kSome;
}

// a * b + c; rounded once where a processor does so without help, because this check need not be exact.
inline double multiply_add(double a, double b, double c) {
#if defined(__aarch64__) && defined(__GNUC__)
    return __builtin_fma(a, b, c);
#else
    return a * b + c;
#endif
}

// An integer from 0 to 2^52 - 1, plus one. It is converted by its bits, because not all processors convert vectors of
// integers.
inline double as_double_plus_one(int64_t integer) {
    const int64_t bits = integer | 0x4330000000000000;
    double shifted;
    std::memcpy(&shifted, &bits, sizeof shifted);
    return shifted - (kExactInteger - 1);
}

// Whether the units promised and given are exact as floating-point numbers. The rounds and the turns are those of
// some clients, combined bit by bit, so that they are at least the largest ones.
inline bool is_exact(int64_t rounds, int32_t turns, double rate, double units_per_turn) {
    return rounds >= 0 && turns >= 0 && (static_cast<double>(rounds) + 1) * rate < kExactInteger &&
           static_cast<double>(rounds) < kExactInteger && static_cast<double>(turns) * units_per_turn < kExactInteger;
}

// Returns whether a client of the block matters, or has numbers for which this check is not certain.
//
// `reach` is the least objective so far plus the margin; `largest` is a little more than the largest price.
TURNOUT_VECTOR static bool single_block_matters(const SingleArrays& arrays, const SingleTerms& terms, double reach,
                                                double largest, int64_t clients) {
    const double *TURNOUT_RESTRICT c0 = arrays.contexts[0], *TURNOUT_RESTRICT c1 = arrays.contexts[1],
                 *TURNOUT_RESTRICT c2 = arrays.contexts[2];
    const double *TURNOUT_RESTRICT t0 = arrays.theta[0], *TURNOUT_RESTRICT t1 = arrays.theta[1],
                 *TURNOUT_RESTRICT t2 = arrays.theta[2];
    const double *TURNOUT_RESTRICT s0 = arrays.sums[0], *TURNOUT_RESTRICT s1 = arrays.sums[1],
                 *TURNOUT_RESTRICT s2 = arrays.sums[2];
    const double* TURNOUT_RESTRICT weights = arrays.weights;
    const int64_t *TURNOUT_RESTRICT rounds = arrays.rounds, *ages = arrays.ages;
    const int32_t* TURNOUT_RESTRICT turns = arrays.turns;
    const double* TURNOUT_RESTRICT losses = arrays.losses;
    const int64_t* TURNOUT_RESTRICT available = arrays.available;
    const double twice_loss_price = 2 * terms.loss_price, head_start = terms.head_start;
    const double full = terms.full, fleet_age = terms.fleet_age, settling = terms.settling;
    const double m0 = terms.mean[0], m1 = terms.mean[1], m2 = terms.mean[2];
    const double rate = terms.rate, units_per_turn = terms.units_per_turn, allowed = terms.allowed;
    const double per_unit = terms.per_unit, twice_reach = 2 * reach, twice_largest = 2 * largest;
    int64_t matters = 0, all_rounds = 0;
    int32_t all_turns = 0;
    for (int64_t i = 0; i < clients; ++i) {
        // x + |x| is twice the larger of x and 0, and compilers vectorize it.
        const double mean = multiply_add(t2[i], c2[i], multiply_add(t1[i], c1[i], t0[i] * c0[i]));
        const double twice_time = mean + std::fabs(mean);
        const double sum =
            multiply_add(t2[i], s2[i] + m2, multiply_add(t1[i], s1[i] + m1, t0[i] * (s0[i] + m0)));
        const double twice_usual = sum + std::fabs(sum);
        const double given = static_cast<double>(turns[i]) * units_per_turn;
        const double behind = multiply_add(rate, as_double_plus_one(rounds[i]), -given);  // exact
        const double slack = allowed - behind;
        const int64_t age_bits = ages[i] | 0x4330000000000000;
        double shifted_age;
        std::memcpy(&shifted_age, &age_bits, sizeof shifted_age);
        const double weight = shifted_age - kExactInteger + settling;
        const double excess = slack - full, surplus = (excess + std::fabs(excess)) / 2;
        // The room and the usual time are multiplied by `weight`, instead of a division.
        const double room = multiply_add(surplus, fleet_age, (slack - surplus + head_start) * weight);
        const double share = multiply_add(weights[i], per_unit, per_unit) * room, cost = twice_usual * weight;
        const double extra = losses ? losses[i] * twice_loss_price : 0.0;
        const int64_t urgent = slack <= 0 ? -1 : 0;
        const int64_t better = cost >= share * (twice_time - extra - twice_reach) ? -1 : 0;
        const int64_t dearer = cost >= share * (twice_largest - extra) ? -1 : 0;
        matters |= (urgent | better | dearer) & available[i];
        all_rounds |= rounds[i] | ages[i];
        all_turns |= turns[i];
    }
    return matters || !is_exact(all_rounds, all_turns, rate, units_per_turn);
}

// Returns whether an available client of the block is more urgent than one with this slack and time: it has less
// slack or, with the same slack, less time. A client without slack is urgent.
TURNOUT_VECTOR static bool has_more_urgent(const SingleArrays& arrays, const SingleTerms& terms, double slack, double time,
                                           int64_t clients) {
    const double *TURNOUT_RESTRICT c0 = arrays.contexts[0], *TURNOUT_RESTRICT c1 = arrays.contexts[1],
                 *TURNOUT_RESTRICT c2 = arrays.contexts[2];
    const double *TURNOUT_RESTRICT t0 = arrays.theta[0], *TURNOUT_RESTRICT t1 = arrays.theta[1],
                 *TURNOUT_RESTRICT t2 = arrays.theta[2];
    const int64_t* TURNOUT_RESTRICT rounds = arrays.rounds;
    const int32_t* TURNOUT_RESTRICT turns = arrays.turns;
    const int64_t* TURNOUT_RESTRICT available = arrays.available;
    const double rate = terms.rate, units_per_turn = terms.units_per_turn, allowed = terms.allowed, twice_time = 2 * time;
    int64_t found = 0, all_rounds = 0;
    int32_t all_turns = 0;
    for (int64_t i = 0; i < clients; ++i) {
        const double mean = t0[i] * c0[i] + t1[i] * c1[i] + t2[i] * c2[i];  // as in predicted_of_block, exactly
        const double promised = rate * as_double_plus_one(rounds[i]);
        const double own = allowed - (promised - static_cast<double>(turns[i]) * units_per_turn);
        const int64_t less = own < slack ? -1 : 0, same = own == slack ? -1 : 0;
        const int64_t faster = mean + std::fabs(mean) < twice_time ? -1 : 0;
        found |= (less | (same & faster)) & available[i];
        all_rounds |= rounds[i];
        all_turns |= turns[i];
    }
    return found || !is_exact(all_rounds, all_turns, rate, units_per_turn);
}

// Returns whether a client of the block, available or not, differs from a client with the values of `like`. Contexts do
// not matter for clients about which nothing is known: their times and usual times are 0 in any of them.
TURNOUT_VECTOR static bool single_block_differs(const SingleArrays& arrays, const SingleArrays& like, int64_t clients) {
    const double *TURNOUT_RESTRICT c0 = arrays.contexts[0], *TURNOUT_RESTRICT c1 = arrays.contexts[1],
                 *TURNOUT_RESTRICT c2 = arrays.contexts[2];
    const double *TURNOUT_RESTRICT t0 = arrays.theta[0], *TURNOUT_RESTRICT t1 = arrays.theta[1],
                 *TURNOUT_RESTRICT t2 = arrays.theta[2];
    const double *TURNOUT_RESTRICT s0 = arrays.sums[0], *TURNOUT_RESTRICT s1 = arrays.sums[1],
                 *TURNOUT_RESTRICT s2 = arrays.sums[2];
    const double* TURNOUT_RESTRICT weights = arrays.weights;
    const int64_t* TURNOUT_RESTRICT rounds = arrays.rounds;
    const int32_t* TURNOUT_RESTRICT turns = arrays.turns;
    const double a0 = *like.contexts[0], a1 = *like.contexts[1], a2 = *like.contexts[2];
    const double b0 = *like.theta[0], b1 = *like.theta[1], b2 = *like.theta[2];
    const double d0 = *like.sums[0], d1 = *like.sums[1], d2 = *like.sums[2], weight = *like.weights;
    const int64_t own_rounds = *like.rounds;
    const int32_t own_turns = *like.turns;
    int64_t differs = 0;
    for (int64_t i = 0; i < clients; ++i)
        differs |= (t0[i] != b0 ? -1 : 0) | (t1[i] != b1 ? -1 : 0) | (t2[i] != b2 ? -1 : 0) | (rounds[i] ^ own_rounds);
    const bool is_known = b0 != 0 || b1 != 0 || b2 != 0;
    for (int64_t i = 0; is_known && i < clients; ++i)
        differs |= (c0[i] != a0 ? -1 : 0) | (c1[i] != a1 ? -1 : 0) | (c2[i] != a2 ? -1 : 0) | (s0[i] != d0 ? -1 : 0) |
                   (s1[i] != d1 ? -1 : 0) | (s2[i] != d2 ? -1 : 0) | (weights[i] != weight ? -1 : 0);
    const int64_t *ages = arrays.ages, own_age = *like.ages;
    for (int64_t i = 0; ages != rounds && i < clients; ++i) differs |= ages[i] ^ own_age;
    const double *losses = arrays.losses, loss = losses ? *like.losses : 0.0;
    for (int64_t i = 0; losses && i < clients; ++i) differs |= losses[i] != loss ? -1 : 0;
    int32_t other_turns = 0;
    for (int64_t i = 0; i < clients; ++i) other_turns |= turns[i] ^ own_turns;
    return differs || other_turns;
}

}  // namespace turnout

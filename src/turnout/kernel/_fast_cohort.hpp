// Solves problem P4 exactly in one pass over the fleet; cohort.py is the equivalent in NumPy.
//
//   minimise  speed_weight * max(time over the cohort) - sum(owed over the cohort)
//
// The pass estimates each client's optimistic time and compares the client's value (the turns owed)
// with the floor of its time bucket: a client at or below the floor comes after `size` clients that
// are as valuable, in faster time buckets and earlier rows, and cannot be selected. Only the others
// are counted, in a two-dimensional histogram over time and value. The counts give the floors of the
// next stage of the pass; the stages grow, so the floors are computed only a few times. The remaining
// candidates are swept from the slowest threshold to the fastest.
//
// The scale of the histogram affects only the speed: any scale gives the exact result. The clients of
// a stage are distributed over threads; the candidates do not depend on how many there are.
//
// FairPace uses the same pass with prices instead of debts; prices.py is the equivalent in NumPy. The
// value of a client is then the bit pattern of its price, which has the same order as the price.
// Urgent clients do not compete: they are collected first and take their places before the sweep.

#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <numeric>
#include <vector>

#include "_fast_single.hpp"
#include "_fast_threads.hpp"
#include "_fast_vector.hpp"

namespace turnout {

constexpr int64_t kBlock = 512;
constexpr int64_t kSmallFleet = 2048;

constexpr int kTimeBuckets = 256;  // bucket 0 holds the times that are exactly 0
constexpr int kTied = kTimeBuckets;  // an additional bucket for one frequent time
constexpr int kLevels = 128;  // of values; a power of two
constexpr int64_t kThreadClients = 8 * 1024;  // a thread for fewer clients costs more than it saves

constexpr double kLargestPrice = 1e290;  // MAX_PRICE of prices.py

// How far each client is behind its promise, and its usual time. Units are integers; a null array
// means that the common value holds for all clients.
struct Pace {
    const int64_t* rates;
    int64_t common_rate;
    const int64_t* rounds;  // in which a client accrued before this one
    int64_t common_rounds;
    const int32_t* turns;
    int64_t units_per_turn;
    const double* allowed;  // units that a client may be behind
    double common_allowed;
    double least_allowed;  // the lower limit of `allowed` in the numerator of a price
    double sharers;  // the number of clients among which the cost of a slow round is divided
    double advantage;  // the weight of the time by which a client is faster than usual
    double head_start;  // units that prices count in addition to those that remain until a client is urgent
    const double* losses;  // relative to the usual loss, or null
    double loss_price;  // what a turn of a client with a loss of 1 is worth in addition
    double fleet_age;  // a surplus beyond the tolerance counts by fleet_age / (settling + age)
    double settling;
    const int64_t* ages;  // the rounds in which a client accrued, whatever its rate was then
    double common_age;
    const double* usual_sums;  // (features + 1, clients): sums of contexts, then their number
    const double* mean_context;  // of the whole fleet
    const double* usual_times;  // known usual times, or null: then they are estimated
};

struct Fleet {
    int64_t clients;
    const double* times;    // known times, or null: then they are estimated from the next six fields
    const double* contexts;  // (clients, features), any strides
    int64_t context_client_stride;
    int64_t context_feature_stride;
    const double* bank;  // features-major: upper triangle of the inverse of H, then theta-hat
    int features;
    double exploration;
    const int64_t* owed;  // units of owed turns, minus `common_credit`
    int64_t common_credit;
    double units_per_turn;
    const uint8_t* available;
    int64_t size;  // of the cohort; at most the number of available clients
    double speed_weight;
    double floor;  // the round lasts at least this long
    const Pace* pace;  // prices instead of `owed`, or null
    int threads;  // the most threads to use
};

struct Member {
    int64_t row;
    double time;
};

struct Cohort {
    std::vector<Member> members;  // in order of rows
    std::vector<int64_t> urgent;  // rows, the most urgent first
    double threshold;
    double objective;
    int64_t considered;  // the number of candidates after the filter
};

// max(c . theta - exploration * sqrt(c' H^-1 c), 0) for three features.
// The operations have the same order as in exchange_time.py, so that rounding is identical.
TURNOUT_VECTOR static void optimistic_of_three(const double* const* contexts, const double* const* bank, int64_t clients,
                                               double exploration, double* TURNOUT_RESTRICT times) {
    const double *TURNOUT_RESTRICT c0 = contexts[0], *TURNOUT_RESTRICT c1 = contexts[1], *TURNOUT_RESTRICT c2 = contexts[2];
    const double *TURNOUT_RESTRICT p00 = bank[0], *TURNOUT_RESTRICT p01 = bank[1], *TURNOUT_RESTRICT p02 = bank[2];
    const double *TURNOUT_RESTRICT p11 = bank[3], *TURNOUT_RESTRICT p12 = bank[4], *TURNOUT_RESTRICT p22 = bank[5];
    const double *TURNOUT_RESTRICT t0 = bank[6], *TURNOUT_RESTRICT t1 = bank[7], *TURNOUT_RESTRICT t2 = bank[8];
    for (int64_t i = 0; i < clients; ++i) {
        const double cross0 = p01[i] * c1[i] + p02[i] * c2[i];
        const double cross1 = p12[i] * c2[i];
        const double square = c0[i] * (p00[i] * c0[i] + (cross0 + cross0)) + c1[i] * (p11[i] * c1[i] + (cross1 + cross1)) +
                              c2[i] * (p22[i] * c2[i]);
        const double mean = t0[i] * c0[i] + t1[i] * c1[i] + t2[i] * c2[i];
        const double time = mean - exploration * std::sqrt(square > 0 ? square : 0.0);
        times[i] = time > 0 ? time : 0.0;
    }
}

// The same for any number of features: processes one feature at a time over a block that stays in cache.
TURNOUT_VECTOR static void optimistic_of_many(const double* const* contexts, const double* const* bank, int features,
                                              int64_t clients, double exploration, double* TURNOUT_RESTRICT times) {
    double square[kBlock], mean[kBlock], cross[kBlock];
    const double* const* theta = bank + features * (features + 1) / 2;
    const double* const* inverse = bank;
    for (int a = 0; a < features; ++a) {
        const double* TURNOUT_RESTRICT ca = contexts[a];
        const double* TURNOUT_RESTRICT diagonal = *inverse++;
        for (int b = a + 1; b < features; ++b) {
            const double* TURNOUT_RESTRICT cb = contexts[b];
            const double* TURNOUT_RESTRICT off = *inverse++;
            if (b == a + 1)
                for (int64_t i = 0; i < clients; ++i) cross[i] = off[i] * cb[i];
            else
                for (int64_t i = 0; i < clients; ++i) cross[i] += off[i] * cb[i];
        }
        const bool crossed = a + 1 < features;
        for (int64_t i = 0; i < clients; ++i) {
            double row = diagonal[i] * ca[i];
            if (crossed) row += cross[i] + cross[i];
            const double term = ca[i] * row, part = theta[a][i] * ca[i];
            square[i] = a ? square[i] + term : term;
            mean[i] = a ? mean[i] + part : part;
        }
    }
    for (int64_t i = 0; i < clients; ++i) {
        const double time = mean[i] - exploration * std::sqrt(square[i] > 0 ? square[i] : 0.0);
        times[i] = time > 0 ? time : 0.0;
    }
}

// The same without exploration, for which the inverse matrices are not needed.
TURNOUT_VECTOR static void predicted_of_block(const double* const* contexts, const double* const* theta, int features,
                                              int64_t clients, double* TURNOUT_RESTRICT times) {
    if (features == 3) {
        const double *TURNOUT_RESTRICT c0 = contexts[0], *TURNOUT_RESTRICT c1 = contexts[1], *TURNOUT_RESTRICT c2 = contexts[2];
        const double *TURNOUT_RESTRICT t0 = theta[0], *TURNOUT_RESTRICT t1 = theta[1], *TURNOUT_RESTRICT t2 = theta[2];
        for (int64_t i = 0; i < clients; ++i) {
            const double time = t0[i] * c0[i] + t1[i] * c1[i] + t2[i] * c2[i];
            times[i] = time > 0 ? time : 0.0;
        }
        return;
    }
    for (int f = 0; f < features; ++f) {
        const double *TURNOUT_RESTRICT c = contexts[f], *TURNOUT_RESTRICT t = theta[f];
        if (f == 0)
            for (int64_t i = 0; i < clients; ++i) times[i] = t[i] * c[i];
        else
            for (int64_t i = 0; i < clients; ++i) times[i] += t[i] * c[i];
    }
    for (int64_t i = 0; i < clients; ++i) times[i] = times[i] > 0 ? times[i] : 0.0;
}

// The scales of the histogram, and the floors that its counts give.
struct Frontier {
    double buckets_per_second = 1.0;
    double tied_time = -1.0;  // has a bucket of its own
    int64_t levels[kLevels];  // the least value of each level; the last ones may be empty
    int64_t floors[kTimeBuckets + 1];  // a client of this bucket competes if its value is larger

    explicit Frontier(int64_t lowest) {
        std::fill(levels, levels + kLevels, std::numeric_limits<int64_t>::max());
        std::fill(floors, floors + kTimeBuckets + 1, lowest);
        levels[0] = lowest;
    }

    int range_of(double time) const {
        return time > 0 ? 1 + static_cast<int>(std::min(time * buckets_per_second, kTimeBuckets - 2.0)) : 0;
    }

    int bucket_of(double time) const { return time == tied_time ? kTied : range_of(time); }

    int level_of(int64_t value) const {
        int level = 0;
        for (int step = kLevels / 2; step > 0; step /= 2) level += (levels[level + step] <= value) * step;
        return level;
    }

    // Sets the scale of times, and the most frequent one, from a sample of positive times.
    void fit_times(std::vector<double>& times) {
        if (times.empty()) return;
        std::sort(times.begin(), times.end());
        buckets_per_second =
            std::min((kTimeBuckets - 2) / times[times.size() * 98 / 100], std::numeric_limits<double>::max());
        size_t most = 8;
        for (size_t start = 0, end; start < times.size(); start = end) {
            for (end = start + 1; end < times.size() && times[end] == times[start];) ++end;
            if (end - start > most) most = end - start, tied_time = times[start];
        }
    }

    // Takes levels from a sample of values: spread over their range and over their quantiles, and most of them among
    // the largest, because their clients compete with each other only. A frequent value becomes a level.
    void fit_values(std::vector<int64_t>& values, bool is_priced) {
        if (values.empty()) return;
        std::sort(values.begin(), values.end());
        constexpr int by_range = 50, by_quantile = 26, by_rank = 50;
        const double count = static_cast<double>(values.size());
        std::vector<int64_t> found = {values.front()};
        // A price of 0 is far from all others on the scale of bit patterns.
        const int64_t least = is_priced ? std::max(values.front(), *std::upper_bound(values.begin(), values.end() - 1, 0)) : values.front();
        for (int i = 0; i < by_range; ++i) {
            const int64_t value = least + (values.back() - least) / by_range * i;
            found.push_back(*std::lower_bound(values.begin(), values.end(), value));
        }
        for (int i = 0; i < by_quantile; ++i) found.push_back(values[values.size() * i / by_quantile]);
        for (int i = 0; i < by_rank; ++i)
            found.push_back(values.end()[-static_cast<std::ptrdiff_t>(std::pow(count, i / static_cast<double>(by_rank)))]);
        std::sort(found.begin(), found.end());
        std::copy(found.begin(), std::unique(found.begin(), found.end()), levels + 1);
    }

    // Sets the floors: `size` counted clients that are certainly as fast have at least this value. In the buckets whose
    // clients are all equally fast these are clients of the same bucket too, which come first only if all clients to
    // be compared are in later rows: otherwise, `later` is false, and a client with the value of the floor competes.
    void set_floors(const std::vector<uint32_t>& counts, int64_t size, bool later) {
        uint32_t ahead[kLevels] = {};
        int level = 0;
        int64_t above = 0;  // those ahead with this level or a higher one
        const auto admit = [&](int bucket) {
            const uint32_t* row = counts.data() + bucket * kLevels;
            for (int i = 0; i < kLevels; ++i) ahead[i] += row[i];
            above += std::accumulate(row + level, row + kLevels, int64_t{0});
            while (above - ahead[level] >= size) above -= ahead[level++];
        };
        const auto set = [&](int bucket, bool is_strict) {
            if (level > 0) floors[bucket] = levels[level] - is_strict;
        };
        admit(0);
        set(0, !later);
        const int tied_range = tied_time > 0 ? range_of(tied_time) : kTied;
        for (int bucket = 1; bucket < kTimeBuckets; ++bucket) {
            set(bucket, false);
            if (bucket == tied_range) {
                admit(kTied);
                set(kTied, !later);
            }
            admit(bucket);
        }
    }
};

// Marks the clients that compete: available ones whose values exceed the floors of their time buckets.
TURNOUT_VECTOR static void mark_competing(const double* TURNOUT_RESTRICT times, const int64_t* TURNOUT_RESTRICT values,
                                          const uint8_t* TURNOUT_RESTRICT available, int64_t clients,
                                          const Frontier& frontier, uint8_t* TURNOUT_RESTRICT competes) {
    const double buckets_per_second = frontier.buckets_per_second, tied_time = frontier.tied_time;
    const int64_t* TURNOUT_RESTRICT floors = frontier.floors;
    constexpr double last = kTimeBuckets - 2;
    int32_t buckets[kBlock];
    for (int64_t i = 0; i < clients; ++i) {
        const double scaled = times[i] * buckets_per_second;
        int32_t bucket = 1 + static_cast<int32_t>(scaled < last ? scaled : last);
        bucket = times[i] > 0 ? bucket : 0;
        buckets[i] = times[i] == tied_time ? kTied : bucket;
    }
    // A loop of its own, because not all processors look up vectors of floors.
    for (int64_t i = 0; i < clients; ++i)
        competes[i] = static_cast<uint8_t>((values[i] > floors[buckets[i]] ? 1 : 0) & available[i]);
}

TURNOUT_VECTOR static bool has_negative(const int64_t* TURNOUT_RESTRICT values, int64_t count) {
    int64_t all = 0;
    for (int64_t i = 0; i < count; ++i) all |= values[i];
    return all < 0;
}

// The dot product of theta-hat and the usual context, times the number of contexts plus one; not negative.
TURNOUT_VECTOR static void usual_of_block(const double* const* sums, const double* mean, const double* const* theta,
                                          int features, int64_t clients, double* TURNOUT_RESTRICT usual) {
    if (features == 3) {
        const double *TURNOUT_RESTRICT s0 = sums[0], *TURNOUT_RESTRICT s1 = sums[1], *TURNOUT_RESTRICT s2 = sums[2];
        const double *TURNOUT_RESTRICT t0 = theta[0], *TURNOUT_RESTRICT t1 = theta[1], *TURNOUT_RESTRICT t2 = theta[2];
        const double m0 = mean[0], m1 = mean[1], m2 = mean[2];
        for (int64_t i = 0; i < clients; ++i) {
            const double time = t0[i] * (s0[i] + m0) + t1[i] * (s1[i] + m1) + t2[i] * (s2[i] + m2);
            usual[i] = time > 0 ? time : 0.0;
        }
        return;
    }
    for (int f = 0; f < features; ++f) {
        const double *TURNOUT_RESTRICT sum = sums[f], *TURNOUT_RESTRICT coefficient = theta[f];
        const double average = mean[f];
        if (f == 0)
            for (int64_t i = 0; i < clients; ++i) usual[i] = coefficient[i] * (sum[i] + average);
        else
            for (int64_t i = 0; i < clients; ++i) usual[i] += coefficient[i] * (sum[i] + average);
    }
    for (int64_t i = 0; i < clients; ++i) usual[i] = usual[i] > 0 ? usual[i] : 0.0;
}

// The bit patterns of prices, from the units that remain until a client is urgent; those of urgent
// clients are negative. `weights` is the number of contexts. The arrays of what all clients share
// hold the same number everywhere, because a loop with conditions would not be vectorized.
TURNOUT_VECTOR static void prices_of_block(const double* TURNOUT_RESTRICT slack, const double* TURNOUT_RESTRICT times,
                                           const double* TURNOUT_RESTRICT usual, const double* TURNOUT_RESTRICT weights,
                                           const double* TURNOUT_RESTRICT allowed,
                                           const int64_t* TURNOUT_RESTRICT ages, const double* TURNOUT_RESTRICT losses,
                                           const Pace& pace, int64_t clients,
                                           int64_t* TURNOUT_RESTRICT keys) {
    const double least_allowed = pace.least_allowed, sharers = pace.sharers, head_start = pace.head_start;
    const double loss_price = pace.loss_price, settling = pace.settling, fleet_age = pace.fleet_age;
    const double advantage = pace.advantage;
    for (int64_t i = 0; i < clients; ++i) {
        const double own = allowed[i] > least_allowed ? allowed[i] : least_allowed, full = own + 2 * least_allowed;
        const int64_t age_bits = ages[i] | 0x4330000000000000;  // an integer below 2^52 as a double, plus 2^52
        double shifted_age;
        std::memcpy(&shifted_age, &age_bits, sizeof shifted_age);
        const double share = fleet_age / (settling + (shifted_age - kExactInteger));
        const double room = slack[i] > full ? full + (slack[i] - full) * share : slack[i];
        const double weight = weights[i] + 1.0, seconds = usual[i] + advantage * (usual[i] - times[i] * weight);
        const double barrier = (seconds > 0 ? seconds : 0.0) * own / (weight * sharers * (room + head_start));
        const double price = barrier + losses[i] * loss_price;
        const double limited = price < kLargestPrice ? price : kLargestPrice;
        const double key = slack[i] > 0 ? limited : -1.0;  // -1.0 is a negative integer too
        std::memcpy(keys + i, &key, sizeof key);
    }
}

// The same result as slack_of_block() for a common rate, in floating-point numbers, for which processors have more
// vector instructions. Returns whether they are exact.
TURNOUT_VECTOR static bool quick_slack_of_block(const int64_t* TURNOUT_RESTRICT rounds, const int32_t* TURNOUT_RESTRICT turns,
                                                const double* TURNOUT_RESTRICT allowed, double rate, double units_per_turn,
                                                int64_t clients, double* TURNOUT_RESTRICT slack) {
    int64_t all_rounds = 0;
    int32_t all_turns = 0;
    for (int64_t i = 0; i < clients; ++i) {
        const double promised = rate * as_double_plus_one(rounds[i]);
        slack[i] = allowed[i] - (promised - static_cast<double>(turns[i]) * units_per_turn);
        all_rounds |= rounds[i];
        all_turns |= turns[i];
    }
    return is_exact(all_rounds, all_turns, rate, units_per_turn);
}

static void slack_of_block(const Pace& pace, int64_t start, int64_t clients, const double* allowed, double* slack) {
    for (int64_t i = 0; i < clients; ++i) {
        const int64_t rate = pace.rates ? pace.rates[start + i] : pace.common_rate;
        const int64_t rounds = pace.rounds ? pace.rounds[start + i] : pace.common_rounds;
        const int64_t behind = rate * (rounds + 1) - static_cast<int64_t>(pace.turns[start + i]) * pace.units_per_turn;
        slack[i] = allowed[i] - static_cast<double>(behind);
    }
}

// What a block of clients with prices contributes: the largest price, and whether a client is urgent
// and among the most urgent ones seen so far, which have less slack than `last_slack` or, with the
// same slack, less time than `last_time`.
struct PacedBlock {
    double last_slack;
    double last_time;
    int64_t largest_key;
    bool has_urgent;
};

TURNOUT_VECTOR static void summarize_paced_block(const double* TURNOUT_RESTRICT slack, const double* TURNOUT_RESTRICT times,
                                                 const int64_t* TURNOUT_RESTRICT keys,
                                                 const uint8_t* TURNOUT_RESTRICT available, int64_t clients,
                                                 PacedBlock& summary) {
    const double last_slack = summary.last_slack, last_time = summary.last_time;
    int64_t largest = summary.largest_key, urgent = 0;
    for (int64_t i = 0; i < clients; ++i) {
        const int64_t key = keys[i] & -static_cast<int64_t>(available[i]);  // availability is 0 or 1
        largest = key > largest ? key : largest;
        const int64_t less = slack[i] < last_slack ? -1 : 0;
        const int64_t same = slack[i] == last_slack ? -1 : 0;
        const int64_t faster = times[i] < last_time ? -1 : 0;
        urgent |= key & (less | (same & faster));
    }
    summary.largest_key = largest;
    summary.has_urgent = urgent < 0;
}

// Bounds of the objectives of clients that compete for one place: an objective is a time minus a price, and
// the rounding of both is far smaller than this share of their sum. The prices are rounded to units after
// that, which depend on the largest price.
constexpr double kRounding = 1e-12;

struct SingleBlock {
    double limit;  // the least upper bound of any client of this block and those before
    double last_time;  // of the last client that was kept
    int64_t last_key;  // the bit pattern of its price; negative if none was kept
    bool has_candidates;  // whether a client of the block may be better, and differs from the last one
    double dropped;  // the least lower bound of any client that was dropped
};

TURNOUT_VECTOR static void summarize_single_block(const double* TURNOUT_RESTRICT times, const int64_t* TURNOUT_RESTRICT keys,
                                                  const uint8_t* TURNOUT_RESTRICT available, int64_t clients,
                                                  double speed_weight, double floor, double* TURNOUT_RESTRICT lower,
                                                  SingleBlock& summary) {
    constexpr double never = std::numeric_limits<double>::infinity();
    const double before = summary.limit, last_time = summary.last_time;
    const int64_t last_key = summary.last_key;
    double limit = before, dropped = summary.dropped;
    int64_t candidates = 0;
    for (int64_t i = 0; i < clients; ++i) {
        double price;
        std::memcpy(&price, keys + i, sizeof price);
        const double cost = speed_weight * (times[i] > floor ? times[i] : floor);
        const double objective = cost - price, rounding = kRounding * (cost + price);
        const bool competes = (available[i] != 0) & (keys[i] >= 0);
        lower[i] = competes ? objective - rounding : never;
        const double upper = competes ? objective + rounding : never;
        limit = upper < limit ? upper : limit;
        const double worse = lower[i] > before ? lower[i] : never;
        dropped = worse < dropped ? worse : dropped;
        const int64_t better = competes & (lower[i] <= before) ? 1 : 0;
        candidates |= better & ((times[i] != last_time) | (keys[i] != last_key) ? 1 : 0);
    }
    summary.limit = limit;
    summary.dropped = dropped;
    summary.has_candidates = candidates != 0;
}

// Times are never negative, so their bit patterns have the same order as the times.
inline uint64_t bits_of(double time) {
    uint64_t bits;
    time += 0.0;  // turns -0.0 into 0.0
    std::memcpy(&bits, &time, sizeof bits);
    return bits;
}

// Returns the indices that sort the keys in ascending order; the sort is stable.
//
// It is a radix sort on the leading bits of the range of the keys, followed by a sort of each
// run of keys that these bits do not distinguish.
inline std::vector<int32_t> ascending(const std::vector<uint64_t>& keys) {
    constexpr size_t few = 256;
    constexpr int digit_bits = 11, most_digits = 3;
    constexpr uint64_t digit_values = uint64_t{1} << digit_bits;
    std::vector<int32_t> order(keys.size());
    std::iota(order.begin(), order.end(), 0);
    const auto by_key = [&](int32_t a, int32_t b) { return keys[a] < keys[b]; };
    if (keys.size() <= few) {
        std::stable_sort(order.begin(), order.end(), by_key);
        return order;
    }
    const auto [lowest, highest] = std::minmax_element(keys.begin(), keys.end());
    const uint64_t base = *lowest;
    int bits = 0;
    while (bits < 64 && ((*highest - base) >> bits) != 0) ++bits;
    const int digits = std::min((bits + digit_bits - 1) / digit_bits, most_digits);
    const int dropped = std::max(bits - most_digits * digit_bits, 0);
    std::vector<int32_t> next(keys.size());
    for (int digit = 0; digit < digits; ++digit) {
        const int shift = dropped + digit * digit_bits;
        int32_t starts[digit_values + 1] = {};
        for (const uint64_t key : keys) ++starts[((key - base) >> shift) % digit_values + 1];
        for (uint64_t value = 0; value < digit_values; ++value) starts[value + 1] += starts[value];
        for (const int32_t position : order) next[starts[((keys[position] - base) >> shift) % digit_values]++] = position;
        order.swap(next);
    }
    if (dropped == 0) return order;
    for (size_t start = 0, end; start < order.size(); start = end) {
        const uint64_t leading = (keys[order[start]] - base) >> dropped;
        bool sorted = true;
        for (end = start + 1; end < order.size() && (keys[order[end]] - base) >> dropped == leading; ++end)
            sorted &= keys[order[end - 1]] <= keys[order[end]];
        if (!sorted) std::stable_sort(order.begin() + start, order.begin() + end, by_key);
    }
    return order;
}

// Keeps the most urgent clients, at most as many as the cohort's size: the smallest slack first,
// among equals the faster client, then the lower row.
class MostUrgent {
   public:
    struct Entry {
        double slack;
        double time;
        int32_t row;

        bool operator<(const Entry& other) const {
            if (slack != other.slack) return slack < other.slack;
            return time != other.time ? time < other.time : row < other.row;
        }
    };

    explicit MostUrgent(int64_t size) : size_(static_cast<size_t>(size)) {}

    void offer(const Entry& entry) {
        if (!(entry < last_)) return;
        kept_.push_back(entry);
        if (kept_.size() >= 2 * size_ + 64) cut();
    }

    // The entry before which a client must come to be kept; infinite slack as long as all are kept.
    const Entry& last() const { return last_; }

    bool has_any() const { return !kept_.empty(); }

    // The most urgent client so far; there must be one.
    const Entry& first() const { return *std::min_element(kept_.begin(), kept_.end()); }

    const std::vector<Entry>& in_order() {
        cut();
        std::sort(kept_.begin(), kept_.end());
        return kept_;
    }

   private:
    const size_t size_;
    std::vector<Entry> kept_;
    Entry last_{std::numeric_limits<double>::infinity(), 0.0, 0};

    void cut() {
        if (kept_.size() <= size_) return;
        const auto last = kept_.begin() + (size_ - 1);
        std::nth_element(kept_.begin(), last, kept_.end());
        last_ = *last;
        kept_.resize(size_);
    }
};

// Estimates the times and values of blocks of clients.
class Estimator {
   public:
    explicit Estimator(const Fleet& fleet)
        : fleet_(fleet), bank_rows_(fleet.features * (fleet.features + 1) / 2 + fleet.features) {
        if (fleet.pace) {
            slack_.resize(kBlock);
            usual_.resize(kBlock);
            keys_.resize(kBlock);
            sums_.resize(fleet.features);
            allowed_.resize(kBlock, fleet.pace->common_allowed);
            zeros_.resize(kBlock);
            ages_.resize(kBlock, static_cast<int64_t>(fleet.pace->common_age));
        }
        if (fleet.times) return;
        scratch_.resize(static_cast<size_t>(fleet.features + 1) * kBlock);
        contexts_.resize(fleet.features);
        bank_.resize(bank_rows_);
    }

    // Whether rates and units are common to all clients, and exact as floating-point numbers.
    bool has_exact_units() const {
        const Pace& pace = *fleet_.pace;
        return !pace.rates && pace.rounds && pace.common_rate >= 0 &&
               static_cast<double>(pace.common_rate) < kExactInteger && static_cast<double>(pace.units_per_turn) < kExactInteger;
    }

    // Of the clients whose values were computed last.
    const double* slack() const { return slack_.data(); }

    // Sets contexts_ to the contexts of the clients [start, start + count), one array for each feature.
    void find_contexts(int64_t start, int64_t count) {
        const int64_t stride = fleet_.context_client_stride;
        for (int f = 0; f < fleet_.features; ++f) {
            contexts_[f] = fleet_.contexts + f * fleet_.context_feature_stride + start * stride;
            if (stride == 1) continue;
            for (int64_t i = 0; i < count; ++i) scratch(f)[i] = contexts_[f][i * stride];
            contexts_[f] = scratch(f);
        }
    }

    // Returns the times of the clients [start, start + count), where count <= kBlock.
    const double* times_of_block(int64_t start, int64_t count) {
        if (fleet_.times) return times_ = fleet_.times + start;
        find_contexts(start, count);
        for (int r = 0; r < bank_rows_; ++r) bank_[r] = fleet_.bank + r * fleet_.clients + start;
        double* times = scratch(fleet_.features);
        if (fleet_.exploration == 0)
            predicted_of_block(contexts_.data(), bank_.data() + bank_rows_ - fleet_.features, fleet_.features, count, times);
        else if (fleet_.features == 3)
            optimistic_of_three(contexts_.data(), bank_.data(), count, fleet_.exploration, times);
        else
            optimistic_of_many(contexts_.data(), bank_.data(), fleet_.features, count, fleet_.exploration, times);
        return times_ = times;
    }

    // Returns the values of the clients [start, start + count): the units owed, or the bit patterns of
    // their prices, negative for urgent clients. Must follow times_of_block() of the same clients.
    const int64_t* values_of_block(int64_t start, int64_t count) {
        if (!fleet_.pace) return fleet_.owed + start;
        const Pace& pace = *fleet_.pace;
        const double* allowed = pace.allowed ? pace.allowed + start : allowed_.data();
        if (!has_exact_units() || !quick_slack_of_block(pace.rounds + start, pace.turns + start, allowed,
                                                        static_cast<double>(pace.common_rate),
                                                        static_cast<double>(pace.units_per_turn), count, slack_.data()))
            slack_of_block(pace, start, count, allowed, slack_.data());
        const double *usual = usual_.data(), *weights = zeros_.data();
        if (pace.usual_times) {
            usual = pace.usual_times + start;
        } else {
            const double* const* theta = bank_.data() + bank_rows_ - fleet_.features;
            for (int f = 0; f < fleet_.features; ++f) sums_[f] = pace.usual_sums + f * fleet_.clients + start;
            usual_of_block(sums_.data(), pace.mean_context, theta, fleet_.features, count, usual_.data());
            weights = pace.usual_sums + fleet_.features * fleet_.clients + start;
        }
        prices_of_block(slack_.data(), times_, usual, weights, allowed, pace.ages ? pace.ages + start : ages_.data(),
                        pace.losses ? pace.losses + start : zeros_.data(), pace, count, keys_.data());
        return keys_.data();
    }

    // The arrays of the clients from `start`; contexts must be those of find_contexts().
    SingleArrays single_arrays(int64_t start, const int64_t* available) const {
        const Pace& pace = *fleet_.pace;
        const int64_t clients = fleet_.clients;
        const double *theta = fleet_.bank + (bank_rows_ - 3) * clients + start, *sums = pace.usual_sums + start;
        return {{contexts_[0], contexts_[1], contexts_[2]},
                {theta, theta + clients, theta + 2 * clients},
                {sums, sums + clients, sums + 2 * clients},
                sums + 3 * clients,
                pace.rounds + start,
                pace.ages + start,
                pace.turns + start,
                pace.losses ? pace.losses + start : nullptr,
                available};
    }

   private:
    const Fleet& fleet_;
    const int bank_rows_;
    const double* times_ = nullptr;  // of the block that was estimated last
    std::vector<double> scratch_;
    std::vector<const double*> contexts_, bank_;
    // For prices only.
    std::vector<double> slack_, usual_, allowed_, zeros_;
    std::vector<int64_t> ages_, keys_;
    std::vector<const double*> sums_;

    double* scratch(int row) { return scratch_.data() + row * kBlock; }
};

struct Candidate {
    double time;
    int64_t value;
    int32_t row;
};

// What one thread works with, and what it finds.
struct Scan {
    Estimator estimator;
    MostUrgent urgent;
    std::vector<Candidate> candidates;  // in order of rows

    explicit Scan(const Fleet& fleet) : estimator(fleet), urgent(fleet.size) {}
};

class Solver {
   public:
    explicit Solver(const Fleet& fleet)
        : fleet_(fleet),
          scans_(std::max<int64_t>(std::min<int64_t>(fleet.threads, fleet.clients / kThreadClients), 1), Scan(fleet)),
          estimator_(scans_[0].estimator),
          urgent_(scans_[0].urgent),
          candidates_(scans_[0].candidates) {}

    Cohort solve() {
        if (fleet_.clients <= kSmallFleet)
            take_all();
        else if (!(fleet_.pace && fleet_.size == 1 && filter_for_one()))
            filter();
        return fleet_.pace ? sweep_after_urgent() : sweep(fleet_.size, fleet_.floor);
    }

   private:
    const Fleet& fleet_;
    std::vector<Scan> scans_;  // one for each thread
    Estimator& estimator_;
    MostUrgent& urgent_;
    std::vector<Candidate>& candidates_;  // in order of rows; those that the first thread finds, and after each stage all
    // For prices only.
    int64_t largest_key_ = 0;
    double units_per_second_ = 1.0;

    // Collects the urgent clients of a block, and returns the largest price of the others.
    int64_t collect_urgent(Scan& scan, int64_t start, int64_t count, const double* times, const int64_t* values) const {
        const double* slack = scan.estimator.slack();
        PacedBlock block{scan.urgent.last().slack, scan.urgent.last().time, 0, false};
        summarize_paced_block(slack, times, values, fleet_.available + start, count, block);
        for (int64_t i = 0; block.has_urgent && i < count; ++i)
            if (fleet_.available[start + i] && values[i] < 0)
                scan.urgent.offer({slack[i], times[i], static_cast<int32_t>(start + i)});
        return block.largest_key;
    }

    void take_all() {
        for (int64_t start = 0; start < fleet_.clients; start += kBlock) {
            const int64_t count = std::min(kBlock, fleet_.clients - start);
            const double* times = estimator_.times_of_block(start, count);
            const int64_t* values = estimator_.values_of_block(start, count);
            if (fleet_.pace) largest_key_ = std::max(largest_key_, collect_urgent(scans_[0], start, count, times, values));
            for (int64_t i = 0; i < count; ++i)
                if (fleet_.available[start + i] && !(fleet_.pace && values[i] < 0))
                    candidates_.push_back({times[i], values[i], static_cast<int32_t>(start + i)});
        }
    }

    // Estimates the ranges of times and values, and frequent ones, from samples spread over the fleet.
    Frontier measure() {
        constexpr int64_t stretches = 32, length = 32;
        std::vector<double> times;
        std::vector<int64_t> values;
        for (int64_t s = 0; s < stretches; ++s) {
            const int64_t start = s * (fleet_.clients - length) / (stretches - 1);
            const double* stretch = estimator_.times_of_block(start, length);
            const int64_t* worth = estimator_.values_of_block(start, length);
            for (int64_t i = 0; i < length; ++i) {
                if (!fleet_.available[start + i] || (fleet_.pace && worth[i] < 0)) continue;
                if (stretch[i] > 0) times.push_back(stretch[i]);
                values.push_back(worth[i]);
            }
        }
        Frontier frontier(fleet_.pace ? -1 : std::numeric_limits<int64_t>::min());
        frontier.fit_times(times);
        frontier.fit_values(values, fleet_.pace != nullptr);
        return frontier;
    }

    // Whether the checks of _fast_single.hpp apply: to estimated times of three features without exploration, and
    // rates that all clients share. Prices for a single place do not depend on the times of this round.
    bool has_quick_check() const {
        const Pace& pace = *fleet_.pace;
        return !fleet_.times && !pace.usual_times && fleet_.features == 3 && fleet_.exploration == 0 &&
               fleet_.speed_weight == 1 && fleet_.floor == 0 && pace.advantage == 0 && !pace.allowed && pace.ages &&
               estimator_.has_exact_units();
    }

    SingleTerms single_terms() const {
        const Pace& pace = *fleet_.pace;
        return {{pace.mean_context[0], pace.mean_context[1], pace.mean_context[2]},
                static_cast<double>(pace.common_rate),
                static_cast<double>(pace.units_per_turn),
                pace.common_allowed,
                pace.sharers / std::max(pace.common_allowed, pace.least_allowed),
                std::max(pace.common_allowed, pace.least_allowed) + 2 * pace.least_allowed,
                pace.fleet_age,
                pace.settling,
                pace.head_start,
                pace.loss_price};
    }

    // With one place, a client cannot be selected if another one has a smaller objective for certain, or an earlier
    // one the same time and price: no histogram is needed. Returns false, without candidates, if the rounding of
    // prices to units could make a difference.
    bool filter_for_one() {
        constexpr double never = std::numeric_limits<double>::infinity();
        std::vector<double> lower(kBlock), bounds;  // bounds: of the candidates
        SingleBlock block{never, 0.0, -1, false, never};
        const bool is_quick = has_quick_check();
        const SingleTerms terms = is_quick ? single_terms() : SingleTerms{};
        std::vector<int64_t> everybody(is_quick ? kBlock : 0, -1), available(everybody);
        double reach = never, largest = 0.0, least_margin = never;
        int64_t model = -1;  // the last client that was kept, while all later ones are like it
        for (int64_t start = 0; start < fleet_.clients; start += kBlock) {
            const int64_t count = std::min(kBlock, fleet_.clients - start);
            if (is_quick) {
                const Flags flags = widen_flags(fleet_.available + start, count, available.data());
                if (flags == Flags::kNone) continue;
                if (model >= 0) {
                    estimator_.find_contexts(model, 1);
                    SingleArrays one = estimator_.single_arrays(model, nullptr);
                    const double like[] = {*one.contexts[0], *one.contexts[1], *one.contexts[2]};
                    for (int f = 0; f < 3; ++f) one.contexts[f] = like + f;
                    estimator_.find_contexts(start, count);
                    if (!single_block_differs(estimator_.single_arrays(start, nullptr), one, count)) continue;
                    model = -1;
                }
                estimator_.find_contexts(start, count);
                const SingleArrays arrays = estimator_.single_arrays(start, (flags == Flags::kAll ? everybody : available).data());
                if (urgent_.has_any() ? !has_more_urgent(arrays, terms, urgent_.first().slack, urgent_.first().time, count)
                                      : !single_block_matters(arrays, terms, reach, largest, count))
                    continue;
            }
            const double* times = estimator_.times_of_block(start, count);
            const int64_t* values = estimator_.values_of_block(start, count);
            const int64_t largest_before = largest_key_;
            const double limit_before = block.limit;
            largest_key_ = std::max(largest_key_, collect_urgent(scans_[0], start, count, times, values));
            summarize_single_block(times, values, fleet_.available + start, count, fleet_.speed_weight, fleet_.floor,
                                   lower.data(), block);
            for (int64_t i = 0; block.has_candidates && i < count; ++i) {
                if (lower[i] > block.limit) {
                    block.dropped = std::min(block.dropped, lower[i]);
                    continue;
                }
                if (lower[i] == never) continue;
                if (times[i] == block.last_time && values[i] == block.last_key) continue;
                block.last_time = times[i];
                block.last_key = values[i];
                candidates_.push_back({times[i], values[i], static_cast<int32_t>(start + i)});
                bounds.push_back(lower[i]);
            }
            if (!is_quick) continue;
            std::memcpy(&largest, &largest_key_, sizeof largest);
            const double margin = kSingleMargin * (std::fabs(block.limit) + largest);
            reach = block.limit + margin;
            least_margin = std::min(least_margin, margin / 2);
            largest *= 1 + kRounding;
            // A block that changed nothing may consist of clients like the last one that was kept.
            if (!block.has_candidates && !candidates_.empty() && largest_key_ == largest_before && block.limit == limit_before)
                model = candidates_.back().row;
        }
        size_t kept = 0;
        for (size_t i = 0; i < bounds.size(); ++i) {
            candidates_[kept] = candidates_[i];
            if (bounds[i] > block.limit) block.dropped = std::min(block.dropped, bounds[i]);
            kept += bounds[i] <= block.limit;
        }
        set_units();
        const double unit = 1 / units_per_second_;
        // The largest price of a block that was skipped may be a little larger, and so may the unit.
        const bool is_unit_known = !is_quick || std::ilogb(largest * (1 + kRounding)) == std::ilogb(largest / (1 + 2 * kRounding));
        // Prices of 0 are exact in any unit: before the first report, all of them are.
        const bool is_sharp = largest_key_ == 0 || std::min(block.dropped - block.limit, least_margin) > 2 * unit;
        if (urgent_.has_any() || !is_unit_known || !is_sharp) kept = 0;
        candidates_.resize(kept);
        return kept > 0 || urgent_.has_any() || block.limit == never;
    }

    void filter() {
        Frontier frontier = measure();
        std::vector<uint32_t> counts((kTimeBuckets + 1) * kLevels, 0);
        size_t counted = 0;  // candidates
        for (int64_t start = 0, end; start < fleet_.clients; start = end) {
            end = std::min(start + std::max(std::min(start, fleet_.clients / 8 / kBlock * kBlock), 8 * kBlock), fleet_.clients);
            const int64_t blocks = (end - start + kBlock - 1) / kBlock;
            const int parts = static_cast<int>(std::max<int64_t>(std::min<int64_t>(scans_.size(), (end - start) / kThreadClients), 1));
            in_parallel(parts, [&](int part) {
                const int64_t last = start + blocks * (part + 1) / parts * kBlock;
                scan_range(scans_[part], start + blocks * part / parts * kBlock, std::min(last, end), frontier);
            });
            for (int part = 1; part < parts; ++part) {
                std::vector<Candidate>& kept = scans_[part].candidates;
                candidates_.insert(candidates_.end(), kept.begin(), kept.end());
                kept.clear();
            }
            for (; counted < candidates_.size(); ++counted) {
                const Candidate& each = candidates_[counted];
                ++counts[frontier.bucket_of(each.time) * kLevels + frontier.level_of(each.value)];
                largest_key_ = std::max(largest_key_, each.value);
            }
            frontier.set_floors(counts, fleet_.size, end < fleet_.clients);
        }
        for (size_t part = 1; part < scans_.size(); ++part)
            for (const MostUrgent::Entry& entry : scans_[part].urgent.in_order()) urgent_.offer(entry);
        const auto is_out = [&](const Candidate& each) { return each.value <= frontier.floors[frontier.bucket_of(each.time)]; };
        candidates_.erase(std::remove_if(candidates_.begin(), candidates_.end(), is_out), candidates_.end());
    }

    // Collects the clients of a range of rows that compete, and those that are urgent.
    void scan_range(Scan& scan, int64_t start, int64_t end, const Frontier& frontier) const {
        constexpr int64_t group = sizeof(uint64_t);
        uint8_t competes[kBlock] = {};
        int64_t places[kBlock];
        for (; start < end; start += kBlock) {
            const int64_t count = std::min(kBlock, end - start);
            const double* times = scan.estimator.times_of_block(start, count);
            const int64_t* values = scan.estimator.values_of_block(start, count);
            mark_competing(times, values, fleet_.available + start, count, frontier, competes);
            if (fleet_.pace && has_negative(values, count)) collect_urgent(scan, start, count, times, values);
            int64_t left = 0;
            for (int64_t first = 0; first < count; first += group) {
                uint64_t any;
                std::memcpy(&any, competes + first, sizeof any);
                if (!any) continue;
                for (int64_t i = first; i < std::min(first + group, count); ++i) {
                    places[left] = i;  // without a branch, which would often be mispredicted
                    left += competes[i];
                }
            }
            for (int64_t place = 0; place < left; ++place) {
                const int64_t i = places[place];
                scan.candidates.push_back({times[i], values[i], static_cast<int32_t>(start + i)});
            }
        }
    }

    // The units of a value: units owed, or a price in units of 1 / units_per_second_ seconds.
    int64_t units_of(int64_t value) const {
        if (!fleet_.pace) return value;
        double price;
        std::memcpy(&price, &value, sizeof price);
        return std::llrint(price * units_per_second_);
    }

    // Sets the unit of prices by the largest of them, so that the sum of a cohort is an integer of 64 bits.
    void set_units() {
        double largest;
        std::memcpy(&largest, &largest_key_, sizeof largest);
        if (largest > 0) {
            int exponent, length = 0;
            std::frexp(largest, &exponent);
            while ((fleet_.size >> length) != 0) ++length;
            units_per_second_ = std::ldexp(1.0, std::min(60 - exponent - length, 1000));
        }
    }

    // Urgent clients come first; the others compete for the places that are left.
    Cohort sweep_after_urgent() {
        set_units();
        const std::vector<MostUrgent::Entry>& urgent = urgent_.in_order();
        double floor = fleet_.floor;
        for (const auto& entry : urgent) floor = std::max(floor, entry.time);
        const int64_t left = fleet_.size - static_cast<int64_t>(urgent.size());
        Cohort cohort;
        if (left > 0) {
            cohort = sweep(left, floor);
            cohort.threshold = std::max(cohort.threshold, floor);
        } else {
            cohort.threshold = cohort.objective = floor;
            cohort.considered = static_cast<int64_t>(candidates_.size());
        }
        for (const auto& entry : urgent) {
            cohort.members.push_back({entry.row, entry.time});
            cohort.urgent.push_back(entry.row);
        }
        std::sort(cohort.members.begin(), cohort.members.end(), [](const Member& a, const Member& b) { return a.row < b.row; });
        return cohort;
    }

    double objective(double threshold, int64_t units, int64_t size, double floor) const {
        units += size * fleet_.common_credit;
        const double slowest = threshold > floor ? threshold : floor;
        return fleet_.speed_weight * slowest - static_cast<double>(units) / (fleet_.pace ? units_per_second_ : fleet_.units_per_turn);
    }

    // Sorts the candidates by debt; the first `size` are the cohort of the slowest threshold.
    // Then removes the slowest candidate again and again: if it was a member of the cohort, the
    // next candidate in the order of debt replaces it.
    Cohort sweep(int64_t size, double floor) {
        const int32_t count = static_cast<int32_t>(candidates_.size());
        std::vector<uint64_t> keys(count);
        for (int32_t i = 0; i < count; ++i) keys[i] = bits_of(candidates_[i].time);
        const std::vector<int32_t> by_time = ascending(keys);
        std::vector<double> times(count);  // in order, as the values that are owed
        std::vector<int64_t> owed(count);
        int64_t most = std::numeric_limits<int64_t>::min();
        for (int32_t i = 0; i < count; ++i) {
            times[i] = candidates_[by_time[i]].time;
            owed[i] = candidates_[by_time[i]].value;
            most = std::max(most, owed[i]);
        }
        for (int32_t i = 0; i < count; ++i) keys[i] = static_cast<uint64_t>(most) - static_cast<uint64_t>(owed[i]);
        const std::vector<int32_t> line = ascending(keys);  // indices into by_time

        std::vector<int32_t> place(count), before(count), behind(count);
        for (int32_t i = 0; i < count; ++i) {
            place[line[i]] = i;
            before[i] = i - 1;
            behind[i] = i + 1;
        }
        if (fleet_.pace)
            for (int64_t& value : owed) value = units_of(value);
        int32_t last = static_cast<int32_t>(size) - 1;  // rank of the cohort's least owed member
        int64_t units = 0;
        for (int32_t i = 0; i <= last; ++i) units += owed[line[i]];

        double best = std::numeric_limits<double>::infinity();
        int32_t best_count = count;
        for (int32_t left = count;; --left) {
            const double threshold = times[left - 1];
            if (left == count || threshold < times[left]) {
                const double value = objective(threshold, units, size, floor);
                if (value <= best) best = value, best_count = left;
            }
            if (left == size) break;
            const int32_t gone = place[left - 1];
            if (gone <= last) {
                units += owed[line[behind[last]]] - owed[left - 1];
                last = behind[last];
            }
            const int32_t a = before[gone], b = behind[gone];
            if (a >= 0) behind[a] = b;
            if (b < count) before[b] = a;
        }

        Cohort cohort;
        cohort.considered = count;
        cohort.objective = best;
        cohort.threshold = times[best_count - 1];
        std::vector<uint8_t> chosen(count, 0);
        int64_t wanted = size;
        for (int32_t i = 0; wanted > 0; ++i)
            if (line[i] < best_count) chosen[by_time[line[i]]] = 1, --wanted;
        for (int32_t i = 0; i < count; ++i)
            if (chosen[i]) cohort.members.push_back({candidates_[i].row, candidates_[i].time});
        return cohort;
    }
};

inline Cohort solve(const Fleet& fleet) { return Solver(fleet).solve(); }

}  // namespace turnout

// Solves problem P4 exactly in one pass over the fleet; cohort.py is the equivalent in NumPy.
//
//   minimise  speed_weight * max(time over the cohort) - sum(owed over the cohort)
//
// The pass estimates each client's optimistic time and counts the client in a two-dimensional
// histogram over time and debt (the turns owed). A client cannot be selected once `size` clients
// in faster time buckets are in higher debt buckets; the counts of the clients seen so far are
// enough to decide this, and they decide more cases as the pass proceeds. Where many clients have
// exactly the same debt, `size` faster ones with that debt are enough too. The few remaining
// candidates are swept from the slowest threshold to the fastest.
//
// The scale of the histogram affects only the speed: any scale gives the exact result.
//
// FairPace uses the same pass with prices instead of debts; pace.py is the equivalent in NumPy. The
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
#include "_fast_vector.hpp"

namespace turnout {

constexpr int64_t kBlock = 512;
constexpr int64_t kSmallFleet = 2048;

constexpr int kTimeBuckets = 256;  // bucket 0 holds the times that are exactly 0
constexpr int kDebtBuckets = 128;
constexpr int kSteps = 4096;
constexpr int kCells = kTimeBuckets * kDebtBuckets;
constexpr uint16_t kAbsent = kCells;  // an additional cell for clients that are not available

constexpr double kLargestPrice = 1e290;  // MAX_PRICE of pace.py

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

// The scales of the histogram. Debts are counted in kSteps equal steps, and the steps are distributed
// over kDebtBuckets buckets.
struct Grid {
    double buckets_per_second = 1.0;
    int64_t lowest_debt = 0;
    int debt_shift = 0;
    uint8_t bucket_of_step[kSteps + 1] = {};  // the additional step is that of clients without a cell

    int64_t step_of(int64_t debt) const {
        const int64_t steps = (debt > lowest_debt ? debt - lowest_debt : 0) >> debt_shift;
        return steps < kSteps - 1 ? steps : kSteps - 1;
    }

    // Distributes the steps over the range and over the quantiles of a sorted sample, with most buckets
    // for the largest debts, because their clients compete with each other only.
    void fit(const std::vector<int64_t>& debts) {
        lowest_debt = debts.front();
        while (((debts.back() - lowest_debt) >> debt_shift) >= kSteps) ++debt_shift;
        const double steps = static_cast<double>(step_of(debts.back()) + 1), count = static_cast<double>(debts.size());
        const double per_step = 0.4 * kDebtBuckets / steps;
        for (size_t below = 0; below <= debts.size(); ++below) {
            const int64_t first = below == 0 ? 0 : step_of(debts[below - 1]) + 1;
            const int64_t end = below == debts.size() ? kSteps : step_of(debts[below]) + 1;
            if (first >= end) continue;
            const double above = count - static_cast<double>(below);
            const double quantile = 1 - above / count, top = 1 - std::log1p(above) / std::log1p(count);
            const double rank = (0.2 * quantile + 0.4 * top) * kDebtBuckets;
            for (int64_t step = first; step < end; ++step) {
                const double bucket = rank + per_step * static_cast<double>(std::min(step, step_of(debts.back())));
                bucket_of_step[step] = static_cast<uint8_t>(std::min(bucket, kDebtBuckets - 1.0));
            }
        }
    }
};

// The time bucket of each client, times kDebtBuckets, and the step of its debt; their sum, with the
// step replaced by its bucket, is the client's cell. Clients that are not available get kAbsent, and
// so do urgent ones, whose values are negative, if `paced`.
TURNOUT_VECTOR static void buckets_of_block(const double* TURNOUT_RESTRICT times, const int64_t* TURNOUT_RESTRICT owed,
                                            const uint8_t* TURNOUT_RESTRICT available, int64_t clients, bool paced,
                                            const Grid& grid, uint16_t* TURNOUT_RESTRICT slowness,
                                            uint16_t* TURNOUT_RESTRICT steps) {
    const double buckets_per_second = grid.buckets_per_second;
    const int64_t lowest_debt = grid.lowest_debt, lowest_value = paced ? 0 : std::numeric_limits<int64_t>::min();
    const int debt_shift = grid.debt_shift;
    constexpr double last = kTimeBuckets - 2;
    for (int64_t i = 0; i < clients; ++i) {
        const double scaled = times[i] * buckets_per_second;
        const int32_t bucket = times[i] > 0 ? 1 + static_cast<int32_t>(scaled < last ? scaled : last) : 0;
        int64_t step = (owed[i] > lowest_debt ? owed[i] - lowest_debt : 0) >> debt_shift;
        step = step < kSteps - 1 ? step : kSteps - 1;
        const bool competes = (available[i] != 0) & (owed[i] >= lowest_value);
        slowness[i] = static_cast<uint16_t>(competes ? bucket * kDebtBuckets : kAbsent);
        steps[i] = static_cast<uint16_t>(competes ? step : kSteps);
    }
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
// clients are negative. `weights` is the number of contexts, or null; `start` is the first client.
TURNOUT_VECTOR static void prices_of_block(const double* TURNOUT_RESTRICT slack, const double* TURNOUT_RESTRICT usual,
                                           const double* weights, const Pace& pace, int64_t start, int64_t clients,
                                           int64_t* TURNOUT_RESTRICT keys) {
    const double* allowed = pace.allowed ? pace.allowed + start : nullptr;
    const double* losses = pace.losses ? pace.losses + start : nullptr;
    const int64_t* ages = pace.ages ? pace.ages + start : nullptr;
    const double common_allowed = pace.common_allowed, least_allowed = pace.least_allowed, sharers = pace.sharers;
    const double head_start = pace.head_start, loss_price = pace.loss_price, settling = pace.settling;
    const double fleet_age = pace.fleet_age, common_share = fleet_age / (settling + pace.common_age);
    for (int64_t i = 0; i < clients; ++i) {
        const double allowance = allowed ? allowed[i] : common_allowed;
        const double own = allowance > least_allowed ? allowance : least_allowed, full = own + 2 * least_allowed;
        const double share = ages ? fleet_age / (settling + static_cast<double>(ages[i])) : common_share;
        const double room = slack[i] > full ? full + (slack[i] - full) * share : slack[i];
        const double weight = weights ? (weights[i] + 1.0) * sharers : sharers;
        const double barrier = usual[i] * own / (weight * (room + head_start));
        const double price = losses ? barrier + losses[i] * loss_price : barrier;
        const double limited = price < kLargestPrice ? price : kLargestPrice;
        const double key = slack[i] > 0 ? limited : -1.0;  // -1.0 is a negative integer too
        std::memcpy(keys + i, &key, sizeof key);
    }
}

TURNOUT_VECTOR static void slack_of_block(const Pace& pace, int64_t start, int64_t clients, double* TURNOUT_RESTRICT slack) {
    const int64_t* rates = pace.rates ? pace.rates + start : nullptr;
    const int64_t* rounds = pace.rounds ? pace.rounds + start : nullptr;
    const double* allowed = pace.allowed ? pace.allowed + start : nullptr;
    const int32_t* turns = pace.turns + start;
    for (int64_t i = 0; i < clients; ++i) {
        const int64_t promised = (rates ? rates[i] : pace.common_rate) * ((rounds ? rounds[i] : pace.common_rounds) + 1);
        const int64_t behind = promised - static_cast<int64_t>(turns[i]) * pace.units_per_turn;
        slack[i] = (allowed ? allowed[i] : pace.common_allowed) - static_cast<double>(behind);
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

// Keeps the most valuable of the clients passed to offer(), at most as many as the cohort's size.
// Clients must be passed in ascending order of rows.
class MostValuable {
   public:
    struct Entry {
        int64_t value;
        int32_t row;
    };

    explicit MostValuable(int64_t size) : size_(static_cast<size_t>(size)) {}

    void offer(int32_t row, int64_t value) {
        if (value <= floor_) return;
        kept_.push_back({value, row});
        if (kept_.size() >= 2 * size_ + 64) cut();
    }

    const std::vector<Entry>& in_order_of_rows() {
        cut();
        std::sort(kept_.begin(), kept_.end(), [](const Entry& a, const Entry& b) { return a.row < b.row; });
        return kept_;
    }

   private:
    const size_t size_;
    std::vector<Entry> kept_;
    int64_t floor_ = std::numeric_limits<int64_t>::min();

    void cut() {
        if (kept_.size() <= size_) return;
        const auto least = kept_.begin() + (size_ - 1);
        std::nth_element(kept_.begin(), least, kept_.end(), [](const Entry& a, const Entry& b) {
            return a.value != b.value ? a.value > b.value : a.row < b.row;
        });
        floor_ = least->value;  // a later row needs more than this, because ties go to the lower row
        kept_.resize(size_);
    }
};

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

// One debt of each debt bucket that many clients have exactly. Of these clients only the fastest can
// be selected, and among equally fast ones only those in the lowest rows.
class FrequentDebts {
   public:
    // Finds debts that occur often in a sorted sample.
    void find(const std::vector<int64_t>& sample, const Grid& grid) {
        constexpr size_t often = 8;
        size_t most[kDebtBuckets] = {};
        for (size_t start = 0, end; start < sample.size(); start = end) {
            for (end = start + 1; end < sample.size() && sample[end] == sample[start];) ++end;
            const size_t bucket = grid.bucket_of_step[grid.step_of(sample[start])];
            if (end - start < often || end - start <= most[bucket]) continue;
            most[bucket] = end - start;
            if (debts_.empty()) {
                debts_.assign(kDebtBuckets, std::numeric_limits<int64_t>::min());
                cells_.resize(kCells);
            }
            debts_[bucket] = sample[start];
        }
        ahead_.assign(kDebtBuckets, 0);
    }

    // Whether this is the frequent debt of the client's bucket.
    bool has(uint16_t cell, int64_t debt) const { return !debts_.empty() && debts_[cell % kDebtBuckets] == debt; }

    bool in_race(uint16_t cell) const { return cells_[cell].in_race; }

    // Whether a client with a frequent debt can be selected; counts it if so. Clients must be passed in
    // ascending order of rows.
    bool admits(uint16_t cell, double time, int64_t size) {
        Cell& own = cells_[cell];
        if (!own.in_race) return false;
        if (own.count == 0) own.time = time;
        if (time == own.time) {
            if (own.equally_fast >= size) return false;
            ++own.equally_fast;
        }
        ++own.count;
        return true;
    }

    // Marks a cell, for which `ahead` clients have a larger debt and are faster; must be called for all
    // cells of a time bucket before those of the next.
    void mark(int slowness, int debt, int64_t ahead, int64_t size) {
        if (debts_.empty()) return;
        if (slowness == 0) ahead_[debt] = 0;
        Cell& own = cells_[slowness * kDebtBuckets + debt];
        own.in_race = ahead + ahead_[debt] < size;
        ahead_[debt] += own.count;
    }

   private:
    struct Cell {
        double time = 0.0;  // of the first client with the frequent debt
        int64_t equally_fast = 0;
        int64_t count = 0;
        bool in_race = true;
    };

    std::vector<int64_t> debts_;
    std::vector<Cell> cells_;
    std::vector<int64_t> ahead_;  // the clients with the frequent debt that are faster
};

class Solver {
   public:
    explicit Solver(const Fleet& fleet)
        : fleet_(fleet),
          bank_rows_(fleet.features * (fleet.features + 1) / 2 + fleet.features),
          urgent_(fleet.size) {
        if (fleet.pace) {
            slack_.resize(kBlock);
            usual_.resize(kBlock);
            keys_.resize(kBlock);
            sums_.resize(fleet.features);
        }
        if (fleet.times) return;
        scratch_.resize(static_cast<size_t>(fleet.features + 1) * kBlock);
        contexts_.resize(fleet.features);
        bank_.resize(bank_rows_);
    }

    Cohort solve() {
        if (fleet_.clients <= kSmallFleet)
            take_all();
        else if (!(fleet_.pace && fleet_.size == 1 && filter_for_one()))
            filter();
        return fleet_.pace ? sweep_after_urgent() : sweep(fleet_.size, fleet_.floor);
    }

   private:
    const Fleet& fleet_;
    const int bank_rows_;
    std::vector<double> scratch_;
    std::vector<const double*> contexts_, bank_;
    // The candidates: first `idle_` clients with time 0 in order of rows, then the others in
    // order of rows.
    std::vector<int32_t> rows_;
    std::vector<double> times_;
    std::vector<int64_t> values_;
    int32_t idle_ = 0;
    // For prices only.
    std::vector<double> slack_, usual_;
    std::vector<int64_t> keys_;
    std::vector<const double*> sums_;
    MostUrgent urgent_;
    int64_t largest_key_ = 0;
    bool is_urgent_known_ = false;
    double units_per_second_ = 1.0;
    FrequentDebts frequent_;

    double* scratch(int row) { return scratch_.data() + row * kBlock; }

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
        if (fleet_.times) return fleet_.times + start;
        find_contexts(start, count);
        for (int r = 0; r < bank_rows_; ++r) bank_[r] = fleet_.bank + r * fleet_.clients + start;
        double* times = scratch(fleet_.features);
        if (fleet_.exploration == 0)
            predicted_of_block(contexts_.data(), bank_.data() + bank_rows_ - fleet_.features, fleet_.features, count, times);
        else if (fleet_.features == 3)
            optimistic_of_three(contexts_.data(), bank_.data(), count, fleet_.exploration, times);
        else
            optimistic_of_many(contexts_.data(), bank_.data(), fleet_.features, count, fleet_.exploration, times);
        return times;
    }

    // Returns the values of the clients [start, start + count): the units owed, or the bit patterns of
    // their prices, negative for urgent clients. Must follow times_of_block() of the same clients.
    const int64_t* values_of_block(int64_t start, int64_t count) {
        if (!fleet_.pace) return fleet_.owed + start;
        const Pace& pace = *fleet_.pace;
        slack_of_block(pace, start, count, slack_.data());
        const double *usual = usual_.data(), *weights = nullptr;
        if (pace.usual_times) {
            usual = pace.usual_times + start;
        } else {
            const double* const* theta = bank_.data() + bank_rows_ - fleet_.features;
            for (int f = 0; f < fleet_.features; ++f) sums_[f] = pace.usual_sums + f * fleet_.clients + start;
            usual_of_block(sums_.data(), pace.mean_context, theta, fleet_.features, count, usual_.data());
            weights = pace.usual_sums + fleet_.features * fleet_.clients + start;
        }
        prices_of_block(slack_.data(), usual, weights, pace, start, count, keys_.data());
        return keys_.data();
    }

    // Collects the urgent clients of a block, and the largest price of the others.
    void collect_urgent(int64_t start, int64_t count, const double* times, const int64_t* values) {
        PacedBlock block{urgent_.last().slack, urgent_.last().time, largest_key_, false};
        summarize_paced_block(slack_.data(), times, values, fleet_.available + start, count, block);
        largest_key_ = block.largest_key;
        if (!block.has_urgent) return;
        for (int64_t i = 0; i < count; ++i)
            if (fleet_.available[start + i] && values[i] < 0)
                urgent_.offer({slack_[i], times[i], static_cast<int32_t>(start + i)});
    }

    void take_all() {
        for (int64_t start = 0; start < fleet_.clients; start += kBlock) {
            const int64_t count = std::min(kBlock, fleet_.clients - start);
            const double* times = times_of_block(start, count);
            const int64_t* values = values_of_block(start, count);
            if (fleet_.pace) collect_urgent(start, count, times, values);
            for (int64_t i = 0; i < count; ++i)
                if (fleet_.available[start + i] && !(fleet_.pace && values[i] < 0)) {
                    rows_.push_back(static_cast<int32_t>(start + i));
                    times_.push_back(times[i]);
                    values_.push_back(values[i]);
                }
        }
    }

    // Estimates the ranges of times and debts, and frequent debts, from samples spread over the fleet.
    Grid measure() {
        constexpr int64_t stretches = 32, length = 32;
        std::vector<double> times;
        std::vector<int64_t> debts;
        for (int64_t s = 0; s < stretches; ++s) {
            const int64_t start = s * (fleet_.clients - length) / (stretches - 1);
            const double* stretch = times_of_block(start, length);
            const int64_t* values = values_of_block(start, length);
            for (int64_t i = 0; i < length; ++i) {
                // Prices of 0 are far from all others on the scale of bit patterns.
                if (!fleet_.available[start + i] || (fleet_.pace && values[i] <= 0)) continue;
                if (stretch[i] > 0) times.push_back(stretch[i]);
                debts.push_back(values[i]);
            }
        }
        Grid grid;
        if (!times.empty()) {
            auto slow = times.begin() + times.size() * 98 / 100;
            std::nth_element(times.begin(), slow, times.end());
            grid.buckets_per_second = std::min((kTimeBuckets - 2) / *slow, std::numeric_limits<double>::max());
        }
        if (!debts.empty()) {
            std::sort(debts.begin(), debts.end());
            grid.fit(debts);
            frequent_.find(debts, grid);
        }
        return grid;
    }

    // Whether the checks of _fast_single.hpp apply: to estimated times of three features without exploration, and
    // rates that all clients share.
    bool has_quick_check() const {
        const Pace& pace = *fleet_.pace;
        return !fleet_.times && !pace.usual_times && fleet_.features == 3 && fleet_.exploration == 0 &&
               fleet_.speed_weight == 1 && fleet_.floor == 0 && !pace.rates && pace.rounds && pace.ages && !pace.allowed &&
               pace.common_rate >= 0 && static_cast<double>(pace.common_rate) < kExactInteger &&
               static_cast<double>(pace.units_per_turn) < kExactInteger;
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

    // With one place, a client cannot be selected if another one has a smaller objective for certain, or an earlier
    // one the same time and price: no histogram is needed. Returns false, without candidates, if the rounding of
    // prices to units could make a difference.
    bool filter_for_one() {
        constexpr double never = std::numeric_limits<double>::infinity();
        std::vector<double> lower(kBlock), bounds;  // bounds: of the clients in rows_
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
                    find_contexts(model, 1);
                    const double like[] = {*contexts_[0], *contexts_[1], *contexts_[2]};
                    SingleArrays one = single_arrays(model, nullptr);
                    for (int f = 0; f < 3; ++f) one.contexts[f] = like + f;
                    find_contexts(start, count);
                    if (!single_block_differs(single_arrays(start, nullptr), one, count)) continue;
                    model = -1;
                }
                find_contexts(start, count);
                const SingleArrays arrays = single_arrays(start, (flags == Flags::kAll ? everybody : available).data());
                if (urgent_.has_any() ? !has_more_urgent(arrays, terms, urgent_.first().slack, urgent_.first().time, count)
                                      : !single_block_matters(arrays, terms, reach, largest, count))
                    continue;
            }
            const double* times = times_of_block(start, count);
            const int64_t* values = values_of_block(start, count);
            const int64_t largest_before = largest_key_;
            const double limit_before = block.limit;
            collect_urgent(start, count, times, values);
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
                rows_.push_back(static_cast<int32_t>(start + i));
                times_.push_back(times[i]);
                values_.push_back(values[i]);
                bounds.push_back(lower[i]);
            }
            if (!is_quick) continue;
            std::memcpy(&largest, &largest_key_, sizeof largest);
            const double margin = kSingleMargin * (std::fabs(block.limit) + largest);
            reach = block.limit + margin;
            least_margin = std::min(least_margin, margin / 2);
            largest *= 1 + kRounding;
            // A block that changed nothing may consist of clients like the last one that was kept.
            if (!block.has_candidates && !rows_.empty() && largest_key_ == largest_before && block.limit == limit_before)
                model = rows_.back();
        }
        size_t kept = 0;
        for (size_t i = 0; i < bounds.size(); ++i) {
            rows_[kept] = rows_[i];
            times_[kept] = times_[i];
            values_[kept] = values_[i];
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
        rows_.resize(kept);
        times_.resize(kept);
        values_.resize(kept);
        is_urgent_known_ = is_unit_known;  // otherwise nobody is urgent, and filter() finds the largest price
        return kept > 0 || urgent_.has_any() || block.limit == never;
    }

    void filter() {
        const Grid grid = measure();
        std::vector<uint32_t> counts(kCells + 1, 0);
        std::vector<uint8_t> in_race(kCells + 1, 1);
        in_race[kAbsent] = 0;
        MostValuable idle(fleet_.size);
        std::vector<uint16_t> cells;  // of the clients in rows_
        uint16_t slowness[kBlock], steps[kBlock], block[kBlock], places[kBlock];
        int64_t next_look = 8 * kBlock;
        for (int64_t start = 0; start < fleet_.clients; start += kBlock) {
            const int64_t count = std::min(kBlock, fleet_.clients - start);
            const double* times = times_of_block(start, count);
            const int64_t* values = values_of_block(start, count);
            if (fleet_.pace && !is_urgent_known_) collect_urgent(start, count, times, values);
            buckets_of_block(times, values, fleet_.available + start, count, fleet_.pace != nullptr, grid, slowness, steps);
            // Branch-free, because mispredicted branches would stall the loads of the next block.
            int64_t left = 0;
            for (int64_t i = 0; i < count; ++i) {
                const uint16_t cell = static_cast<uint16_t>(slowness[i] + grid.bucket_of_step[steps[i]]);
                block[i] = cell;
                places[left] = static_cast<uint16_t>(i);
                left += in_race[cell];
            }
            for (int64_t i = 0; i < left; ++i) {
                const int32_t row = static_cast<int32_t>(start + places[i]);
                const uint16_t cell = block[places[i]];
                const double time = times[places[i]];
                const int64_t value = values[places[i]];
                const bool is_idle = cell < kDebtBuckets;
                if (!is_idle && frequent_.has(cell, value) && !frequent_.admits(cell, time, fleet_.size)) continue;
                // Those that are out of the race need not be counted: a client behind one of them is also behind
                // the `size` clients that are ahead of it.
                ++counts[cell];
                if (is_idle) {
                    idle.offer(row, value);
                } else {
                    rows_.push_back(row);
                    times_.push_back(time);
                    values_.push_back(value);
                    cells.push_back(cell);
                }
            }
            if (start + count >= next_look) {
                drop_hopeless(counts, in_race);
                next_look += std::min(next_look, fleet_.clients / 8);
            }
        }
        drop_hopeless(counts, in_race);
        keep_in_race(cells, in_race);
        const std::vector<MostValuable::Entry>& entries = idle.in_order_of_rows();
        rows_.insert(rows_.begin(), entries.size(), 0);
        values_.insert(values_.begin(), entries.size(), 0);
        for (size_t i = 0; i < entries.size(); ++i) rows_[i] = entries[i].row, values_[i] = entries[i].value;
        times_.insert(times_.begin(), entries.size(), 0.0);
        idle_ = static_cast<int32_t>(entries.size());
    }

    // Marks the cells whose clients cannot be selected any more: at least `size` clients in
    // faster time buckets are in higher debt buckets, or have the same frequent debt.
    void drop_hopeless(const std::vector<uint32_t>& counts, std::vector<uint8_t>& in_race) {
        std::vector<int64_t> ahead_by_debt(kDebtBuckets, 0);
        for (int slowness = 0; slowness < kTimeBuckets; ++slowness) {
            const uint32_t* row = counts.data() + slowness * kDebtBuckets;
            auto admit = [&] {
                for (int debt = 0; debt < kDebtBuckets; ++debt) ahead_by_debt[debt] += row[debt];
            };
            // Clients in bucket 0 all have time 0, so there only the debt counts.
            if (slowness == 0) admit();
            int64_t ahead = 0;
            for (int debt = kDebtBuckets - 1; debt >= 0; --debt) {
                in_race[slowness * kDebtBuckets + debt] = ahead < fleet_.size;
                frequent_.mark(slowness, debt, ahead, fleet_.size);
                ahead += ahead_by_debt[debt];
            }
            if (slowness > 0) admit();
        }
    }

    void keep_in_race(const std::vector<uint16_t>& cells, const std::vector<uint8_t>& in_race) {
        size_t kept = 0;
        for (size_t i = 0; i < cells.size(); ++i) {
            rows_[kept] = rows_[i];
            times_[kept] = times_[i];
            values_[kept] = values_[i];
            kept += in_race[cells[i]] && (!frequent_.has(cells[i], values_[i]) || frequent_.in_race(cells[i]));
        }
        rows_.resize(kept);
        times_.resize(kept);
        values_.resize(kept);
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
            cohort.considered = static_cast<int64_t>(rows_.size());
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
        const int32_t count = static_cast<int32_t>(rows_.size());
        std::vector<uint64_t> keys(count);
        for (int32_t i = 0; i < count; ++i) keys[i] = bits_of(times_[i]);
        const std::vector<int32_t> by_time = ascending(keys);
        std::vector<int64_t> owed(count);
        int64_t most = std::numeric_limits<int64_t>::min();
        for (int32_t i = 0; i < count; ++i) {
            owed[i] = values_[by_time[i]];
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
            const double threshold = times_[by_time[left - 1]];
            if (left == count || threshold < times_[by_time[left]]) {
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
        cohort.threshold = times_[by_time[best_count - 1]];
        std::vector<uint8_t> chosen(count, 0);
        int64_t wanted = size;
        for (int32_t i = 0; wanted > 0; ++i)
            if (line[i] < best_count) chosen[by_time[line[i]]] = 1, --wanted;
        std::ptrdiff_t idle = 0;
        for (int32_t i = 0; i < count; ++i)
            if (chosen[i]) cohort.members.push_back({rows_[i], times_[i]}), idle += i < idle_;
        std::inplace_merge(cohort.members.begin(), cohort.members.begin() + idle, cohort.members.end(),
                           [](const Member& a, const Member& b) { return a.row < b.row; });
        return cohort;
    }
};

inline Cohort solve(const Fleet& fleet) { return Solver(fleet).solve(); }

}  // namespace turnout

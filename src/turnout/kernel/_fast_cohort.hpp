// Solves problem P4 exactly in one pass over the fleet; cohort.py is the equivalent in NumPy.
//
//   minimise  speed_weight * max(time over the cohort) - sum(owed over the cohort)
//
// The pass estimates each client's optimistic time and counts the client in a two-dimensional
// histogram over time and debt (the turns owed). A client cannot be selected once `size` clients
// in faster time buckets are in higher debt buckets; the counts of the clients seen so far are
// enough to decide this, and they decide more cases as the pass proceeds. The few remaining
// candidates are swept from the slowest threshold to the fastest.
//
// The scale of the histogram affects only the speed: any scale gives the exact result.

#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <numeric>
#include <vector>

#include "_fast_vector.hpp"

namespace turnout {

constexpr int64_t kBlock = 512;
constexpr int64_t kSmallFleet = 2048;

constexpr int kTimeBuckets = 256;  // bucket 0 holds the times that are exactly 0
constexpr int kDebtBuckets = 128;
constexpr int kCells = kTimeBuckets * kDebtBuckets;
constexpr uint16_t kAbsent = kCells;  // an additional cell for clients that are not available

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
};

struct Member {
    int64_t row;
    double time;
};

struct Cohort {
    std::vector<Member> members;  // in order of rows
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

struct Grid {
    double buckets_per_second;
    int64_t lowest_debt;
    int debt_shift;
};

TURNOUT_VECTOR static void cells_of_block(const double* TURNOUT_RESTRICT times, const int64_t* TURNOUT_RESTRICT owed,
                                          const uint8_t* TURNOUT_RESTRICT available, int64_t clients, const Grid& grid,
                                          uint16_t* TURNOUT_RESTRICT cells) {
    const double buckets_per_second = grid.buckets_per_second;
    const int64_t lowest_debt = grid.lowest_debt;
    const int debt_shift = grid.debt_shift;
    constexpr double last = kTimeBuckets - 2;
    for (int64_t i = 0; i < clients; ++i) {
        const double scaled = times[i] * buckets_per_second;
        const int32_t slowness = times[i] > 0 ? 1 + static_cast<int32_t>(scaled < last ? scaled : last) : 0;
        int64_t debt = owed[i] - lowest_debt;
        debt = (debt > 0 ? debt : 0) >> debt_shift;
        debt = debt < kDebtBuckets - 1 ? debt : kDebtBuckets - 1;
        const int32_t cell = slowness * kDebtBuckets + static_cast<int32_t>(debt);
        cells[i] = static_cast<uint16_t>(available[i] ? cell : kAbsent);
    }
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

// Keeps the most owed of the clients passed to offer(), at most as many as the cohort's size.
// Clients must be passed in ascending order of rows.
class MostOwed {
   public:
    explicit MostOwed(const Fleet& fleet) : owed_(fleet.owed), size_(static_cast<size_t>(fleet.size)) {}

    void offer(int32_t row) {
        if (owed_[row] <= floor_) return;
        kept_.push_back(row);
        if (kept_.size() >= 2 * size_ + 64) cut();
    }

    const std::vector<int32_t>& rows() {
        cut();
        std::sort(kept_.begin(), kept_.end());
        return kept_;
    }

   private:
    const int64_t* owed_;
    const size_t size_;
    std::vector<int32_t> kept_;
    int64_t floor_ = std::numeric_limits<int64_t>::min();

    void cut() {
        if (kept_.size() <= size_) return;
        const auto least = kept_.begin() + (size_ - 1);
        std::nth_element(kept_.begin(), least, kept_.end(), [this](int32_t a, int32_t b) {
            return owed_[a] != owed_[b] ? owed_[a] > owed_[b] : a < b;
        });
        floor_ = owed_[*least];  // a later row needs more than this, because ties go to the lower row
        kept_.resize(size_);
    }
};

class Solver {
   public:
    explicit Solver(const Fleet& fleet) : fleet_(fleet), bank_rows_(fleet.features * (fleet.features + 1) / 2 + fleet.features) {
        if (fleet.times) return;
        scratch_.resize(static_cast<size_t>(fleet.features + 1) * kBlock);
        contexts_.resize(fleet.features);
        bank_.resize(bank_rows_);
    }

    Cohort solve() {
        if (fleet_.clients <= kSmallFleet)
            take_all();
        else
            filter();
        return sweep();
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
    int32_t idle_ = 0;

    double* scratch(int row) { return scratch_.data() + row * kBlock; }

    // Returns the times of the clients [start, start + count), where count <= kBlock.
    const double* times_of_block(int64_t start, int64_t count) {
        if (fleet_.times) return fleet_.times + start;
        const int64_t stride = fleet_.context_client_stride;
        for (int f = 0; f < fleet_.features; ++f) {
            contexts_[f] = fleet_.contexts + f * fleet_.context_feature_stride + start * stride;
            if (stride == 1) continue;
            for (int64_t i = 0; i < count; ++i) scratch(f)[i] = contexts_[f][i * stride];
            contexts_[f] = scratch(f);
        }
        for (int r = 0; r < bank_rows_; ++r) bank_[r] = fleet_.bank + r * fleet_.clients + start;
        double* times = scratch(fleet_.features);
        if (fleet_.features == 3)
            optimistic_of_three(contexts_.data(), bank_.data(), count, fleet_.exploration, times);
        else
            optimistic_of_many(contexts_.data(), bank_.data(), fleet_.features, count, fleet_.exploration, times);
        return times;
    }

    void take_all() {
        for (int64_t start = 0; start < fleet_.clients; start += kBlock) {
            const int64_t count = std::min(kBlock, fleet_.clients - start);
            const double* times = times_of_block(start, count);
            for (int64_t i = 0; i < count; ++i)
                if (fleet_.available[start + i]) {
                    rows_.push_back(static_cast<int32_t>(start + i));
                    times_.push_back(times[i]);
                }
        }
    }

    // Estimates the ranges of times and debts from samples spread over the fleet.
    Grid measure() {
        constexpr int64_t stretches = 32, length = 32;
        std::vector<double> times;
        int64_t lowest = std::numeric_limits<int64_t>::max(), highest = std::numeric_limits<int64_t>::min();
        for (int64_t s = 0; s < stretches; ++s) {
            const int64_t start = s * (fleet_.clients - length) / (stretches - 1);
            const double* stretch = times_of_block(start, length);
            for (int64_t i = 0; i < length; ++i) {
                if (!fleet_.available[start + i]) continue;
                if (stretch[i] > 0) times.push_back(stretch[i]);
                lowest = std::min(lowest, fleet_.owed[start + i]);
                highest = std::max(highest, fleet_.owed[start + i]);
            }
        }
        Grid grid{1.0, 0, 0};
        if (!times.empty()) {
            auto slow = times.begin() + times.size() * 98 / 100;
            std::nth_element(times.begin(), slow, times.end());
            grid.buckets_per_second = std::min((kTimeBuckets - 2) / *slow, std::numeric_limits<double>::max());
        }
        if (lowest <= highest) {
            grid.lowest_debt = lowest;
            while (((highest - lowest) >> grid.debt_shift) >= kDebtBuckets) ++grid.debt_shift;
        }
        return grid;
    }

    void filter() {
        const Grid grid = measure();
        std::vector<uint32_t> counts(kCells + 1, 0);
        std::vector<uint8_t> in_race(kCells + 1, 1);
        in_race[kAbsent] = 0;
        MostOwed idle(fleet_);
        std::vector<uint16_t> cells;  // of the clients in rows_
        uint16_t block[kBlock], places[kBlock];
        int64_t next_look = 8 * kBlock;
        for (int64_t start = 0; start < fleet_.clients; start += kBlock) {
            const int64_t count = std::min(kBlock, fleet_.clients - start);
            const double* times = times_of_block(start, count);
            cells_of_block(times, fleet_.owed + start, fleet_.available + start, count, grid, block);
            for (int64_t i = 0; i < count; ++i) ++counts[block[i]];
            // Branch-free, because mispredicted branches would stall the loads of the next block.
            int64_t left = 0;
            for (int64_t i = 0; i < count; ++i) {
                places[left] = static_cast<uint16_t>(i);
                left += in_race[block[i]];
            }
            for (int64_t i = 0; i < left; ++i) {
                const int32_t row = static_cast<int32_t>(start + places[i]);
                const uint16_t cell = block[places[i]];
                if (cell < kDebtBuckets) {
                    idle.offer(row);
                } else {
                    rows_.push_back(row);
                    times_.push_back(times[places[i]]);
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
        const std::vector<int32_t>& idle_rows = idle.rows();
        rows_.insert(rows_.begin(), idle_rows.begin(), idle_rows.end());
        times_.insert(times_.begin(), idle_rows.size(), 0.0);
        idle_ = static_cast<int32_t>(idle_rows.size());
    }

    // Marks the cells whose clients cannot be selected any more: at least `size` clients in
    // faster time buckets are in higher debt buckets.
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
            kept += in_race[cells[i]];
        }
        rows_.resize(kept);
        times_.resize(kept);
    }

    double objective(double threshold, int64_t units) const {
        units += fleet_.size * fleet_.common_credit;
        return fleet_.speed_weight * threshold - static_cast<double>(units) / fleet_.units_per_turn;
    }

    // Sorts the candidates by debt; the first `size` are the cohort of the slowest threshold.
    // Then removes the slowest candidate again and again: if it was a member of the cohort, the
    // next candidate in the order of debt replaces it.
    Cohort sweep() {
        const int32_t count = static_cast<int32_t>(rows_.size());
        std::vector<uint64_t> keys(count);
        for (int32_t i = 0; i < count; ++i) keys[i] = bits_of(times_[i]);
        const std::vector<int32_t> by_time = ascending(keys);
        std::vector<int64_t> owed(count);
        int64_t most = std::numeric_limits<int64_t>::min();
        for (int32_t i = 0; i < count; ++i) {
            owed[i] = fleet_.owed[rows_[by_time[i]]];
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
        int32_t last = static_cast<int32_t>(fleet_.size) - 1;  // rank of the cohort's least owed member
        int64_t units = 0;
        for (int32_t i = 0; i <= last; ++i) units += owed[line[i]];

        double best = std::numeric_limits<double>::infinity();
        int32_t best_count = count;
        for (int32_t left = count;; --left) {
            const double threshold = times_[by_time[left - 1]];
            if (left == count || threshold < times_[by_time[left]]) {
                const double value = objective(threshold, units);
                if (value <= best) best = value, best_count = left;
            }
            if (left == fleet_.size) break;
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
        int64_t wanted = fleet_.size;
        for (int32_t i = 0; wanted > 0; ++i)
            if (line[i] < best_count) chosen[by_time[line[i]]] = 1, --wanted;
        ptrdiff_t idle = 0;
        for (int32_t i = 0; i < count; ++i)
            if (chosen[i]) cohort.members.push_back({rows_[i], times_[i]}), idle += i < idle_;
        std::inplace_merge(cohort.members.begin(), cohort.members.begin() + idle, cohort.members.end(),
                           [](const Member& a, const Member& b) { return a.row < b.row; });
        return cohort;
    }
};

inline Cohort solve(const Fleet& fleet) { return Solver(fleet).solve(); }

}  // namespace turnout

# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False
"""Python bindings of the compiled kernel; callers must validate the arrays, which are not checked here."""

from libc.stdint cimport int32_t, int64_t, uint8_t
from libcpp.vector cimport vector

import numpy as np

cdef extern from "_fast_cohort.hpp" namespace "turnout" nogil:
    cdef struct Pace:
        const int64_t* rates
        int64_t common_rate
        const int64_t* rounds
        int64_t common_rounds
        const int32_t* turns
        int64_t units_per_turn
        const double* allowed
        double common_allowed
        double least_allowed
        double sharers
        double advantage
        double head_start
        const double* losses
        double loss_price
        double fleet_age
        double settling
        const int64_t* ages
        double common_age
        const double* usual_sums
        const double* mean_context
        const double* usual_times

    cdef struct Fleet:
        int64_t clients
        const double* times
        const double* contexts
        int64_t context_client_stride
        int64_t context_feature_stride
        const double* bank
        int features
        double exploration
        const int64_t* owed
        int64_t common_credit
        double units_per_turn
        const uint8_t* available
        int64_t size
        double speed_weight
        double floor
        const Pace* pace
        int threads

    cdef struct Member:
        int64_t row
        double time

    cdef cppclass Cohort:
        vector[Member] members
        vector[int64_t] urgent
        double threshold
        double objective
        int64_t considered

    Cohort solve(const Fleet&) except +


cdef extern from "_fast_learning.hpp" namespace "turnout" nogil:
    cdef struct Lessons:
        double* bank
        int64_t clients
        int features
        const int64_t* rows
        int64_t count
        const double* contexts
        int64_t context_row_stride
        int64_t context_feature_stride
        const double* times

    void learn_in_place "turnout::learn"(const Lessons&) except +
    double largest_of "turnout::magnitude"(const double*, int64_t, int) except +
    void add_flags "turnout::count_flags" (int64_t*, const uint8_t*, int64_t)


cdef _solved(const Fleet& fleet):
    cdef Cohort cohort
    with nogil:
        cohort = solve(fleet)
    rows = np.empty(cohort.members.size(), dtype=np.int64)
    times = np.empty(cohort.members.size())
    cdef int64_t[::1] row = rows
    cdef double[::1] time = times
    cdef Py_ssize_t i
    for i in range(<Py_ssize_t> cohort.members.size()):
        row[i] = cohort.members[i].row
        time[i] = cohort.members[i].time
    found = rows, times, cohort.threshold, cohort.objective, cohort.considered
    if fleet.pace is NULL:
        return found
    urgent = np.empty(cohort.urgent.size(), dtype=np.int64)
    cdef int64_t[::1] first = urgent
    for i in range(<Py_ssize_t> cohort.urgent.size()):
        first[i] = cohort.urgent[i]
    return found, urgent


cdef void _set_contexts(Fleet* fleet, const double[:, :] contexts, const double[:, ::1] bank, double exploration):
    fleet.times = NULL
    fleet.contexts = &contexts[0, 0]
    fleet.context_client_stride = contexts.strides[0] // <Py_ssize_t> sizeof(double)
    fleet.context_feature_stride = contexts.strides[1] // <Py_ssize_t> sizeof(double)
    fleet.bank = &bank[0, 0]
    fleet.features = <int> contexts.shape[1]
    fleet.exploration = exploration


cdef Fleet _owed_fleet(const int64_t[::1] owed, int64_t common_credit, double units_per_turn,
                       const uint8_t[::1] available, int64_t size, double speed_weight, int threads):
    cdef Fleet fleet
    fleet.threads = threads
    fleet.floor = 0.0
    fleet.pace = NULL
    fleet.clients = owed.shape[0]
    fleet.owed = &owed[0]
    fleet.common_credit = common_credit
    fleet.units_per_turn = units_per_turn
    fleet.available = &available[0]
    fleet.size = size
    fleet.speed_weight = speed_weight
    return fleet


def cohort_of_times(const double[::1] times, const int64_t[::1] owed, int64_t common_credit,
                    double units_per_turn, const uint8_t[::1] available, int64_t size, double speed_weight,
                    double floor, int threads):
    cdef Fleet fleet = _owed_fleet(owed, common_credit, units_per_turn, available, size, speed_weight, threads)
    fleet.floor = floor
    fleet.times = &times[0]
    fleet.features = 0
    return _solved(fleet)


def cohort_of_contexts(const double[:, :] contexts, const double[:, ::1] bank, double exploration,
                       const int64_t[::1] owed, int64_t common_credit, double units_per_turn,
                       const uint8_t[::1] available, int64_t size, double speed_weight, int threads):
    cdef Fleet fleet = _owed_fleet(owed, common_credit, units_per_turn, available, size, speed_weight, threads)
    _set_contexts(&fleet, contexts, bank, exploration)
    return _solved(fleet)


cdef class _PaceView:
    """The pointers of a pace, and the arrays behind them."""

    cdef Pace pace
    cdef object arrays

    def __init__(self, rates, rounds, const int32_t[::1] turns, int64_t units_per_turn, allowed,
                 double least_allowed, double sharers, double advantage, double head_start, losses, double loss_price,
                 double fleet_age, double settling, ages):
        cdef const int64_t[::1] units
        cdef const double[::1] doubles
        self.arrays = [turns]
        self.pace.rates = self.pace.rounds = NULL
        self.pace.allowed = self.pace.usual_sums = self.pace.mean_context = self.pace.usual_times = NULL
        if isinstance(rates, int):
            self.pace.common_rate = rates
        else:
            units = rates
            self.arrays.append(units)
            self.pace.rates = &units[0]
        if isinstance(rounds, int):
            self.pace.common_rounds = rounds
        else:
            units = rounds
            self.arrays.append(units)
            self.pace.rounds = &units[0]
        if isinstance(allowed, float):
            self.pace.common_allowed = allowed
        else:
            doubles = allowed
            self.arrays.append(doubles)
            self.pace.allowed = &doubles[0]
        self.pace.turns = &turns[0]
        self.pace.units_per_turn = units_per_turn
        self.pace.least_allowed = least_allowed
        self.pace.sharers = sharers
        self.pace.advantage = advantage
        self.pace.head_start = head_start
        self.pace.losses = NULL
        self.pace.loss_price = loss_price
        if losses is not None:
            doubles = losses
            self.arrays.append(doubles)
            self.pace.losses = &doubles[0]
        self.pace.fleet_age = fleet_age
        self.pace.settling = settling
        self.pace.common_age = 0.0
        if ages is None:
            self.pace.ages = self.pace.rounds
            if self.pace.rounds is NULL:
                self.pace.common_age = <double> self.pace.common_rounds
        elif isinstance(ages, int):
            self.pace.ages = NULL
            self.pace.common_age = <double> <int64_t> ages
        else:
            units = ages
            self.arrays.append(units)
            self.pace.ages = &units[0]

    cdef Fleet to_fleet(self, const uint8_t[::1] available, int64_t size, int threads):
        cdef Fleet fleet
        fleet.threads = threads
        fleet.clients = available.shape[0]
        fleet.owed = NULL
        fleet.common_credit = 0
        fleet.units_per_turn = 1.0
        fleet.available = &available[0]
        fleet.size = size
        fleet.speed_weight = 1.0
        fleet.floor = 0.0
        fleet.pace = &self.pace
        return fleet


def paced_cohort_of_times(const double[::1] times, const double[::1] usual_times, tuple pace,
                          const uint8_t[::1] available, int64_t size, int threads):
    cdef _PaceView view = _PaceView(*pace)
    cdef Fleet fleet = view.to_fleet(available, size, threads)
    fleet.times = &times[0]
    fleet.features = 0
    view.pace.usual_times = &usual_times[0]
    return _solved(fleet)


def paced_cohort_of_contexts(const double[:, :] contexts, const double[:, ::1] bank, double exploration,
                             const double[:, ::1] usual_sums, const double[::1] mean_context, tuple pace,
                             const uint8_t[::1] available, int64_t size, int threads):
    cdef _PaceView view = _PaceView(*pace)
    cdef Fleet fleet = view.to_fleet(available, size, threads)
    _set_contexts(&fleet, contexts, bank, exploration)
    view.pace.usual_sums = &usual_sums[0, 0]
    view.pace.mean_context = &mean_context[0]
    return _solved(fleet)


def learn(double[:, ::1] bank, const int64_t[::1] rows, const double[:, :] contexts, const double[::1] times):
    if rows.shape[0] == 0:
        return
    cdef Lessons lessons
    lessons.bank = &bank[0, 0]
    lessons.clients = bank.shape[1]
    lessons.features = <int> contexts.shape[1]
    lessons.rows = &rows[0]
    lessons.count = rows.shape[0]
    lessons.contexts = &contexts[0, 0]
    lessons.context_row_stride = contexts.strides[0] // <Py_ssize_t> sizeof(double)
    lessons.context_feature_stride = contexts.strides[1] // <Py_ssize_t> sizeof(double)
    lessons.times = &times[0]
    with nogil:
        learn_in_place(lessons)


def magnitude(const double[::1] numbers, int threads):
    cdef double largest
    with nogil:
        largest = largest_of(&numbers[0], numbers.shape[0], threads)
    return largest


def count_flags(int64_t[::1] counts, const uint8_t[::1] flags):
    if counts.shape[0]:
        with nogil:
            add_flags(&counts[0], &flags[0], counts.shape[0])

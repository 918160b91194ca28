# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False
"""Python bindings of the compiled kernel; callers must validate the arrays, which are not checked here."""

from libc.stdint cimport int64_t, uint8_t
from libcpp.vector cimport vector

import numpy as np

cdef extern from "_fast_cohort.hpp" namespace "turnout" nogil:
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

    cdef struct Member:
        int64_t row
        double time

    cdef cppclass Cohort:
        vector[Member] members
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
    double largest_of "turnout::magnitude"(const double*, int64_t)


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
    return rows, times, cohort.threshold, cohort.objective, cohort.considered


cdef Fleet _owed_fleet(const int64_t[::1] owed, int64_t common_credit, double units_per_turn,
                       const uint8_t[::1] available, int64_t size, double speed_weight):
    cdef Fleet fleet
    fleet.clients = owed.shape[0]
    fleet.owed = &owed[0]
    fleet.common_credit = common_credit
    fleet.units_per_turn = units_per_turn
    fleet.available = &available[0]
    fleet.size = size
    fleet.speed_weight = speed_weight
    return fleet


def cohort_of_times(const double[::1] times, const int64_t[::1] owed, int64_t common_credit,
                    double units_per_turn, const uint8_t[::1] available, int64_t size, double speed_weight):
    cdef Fleet fleet = _owed_fleet(owed, common_credit, units_per_turn, available, size, speed_weight)
    fleet.times = &times[0]
    fleet.features = 0
    return _solved(fleet)


def cohort_of_contexts(const double[:, :] contexts, const double[:, ::1] bank, double exploration,
                       const int64_t[::1] owed, int64_t common_credit, double units_per_turn,
                       const uint8_t[::1] available, int64_t size, double speed_weight):
    cdef Fleet fleet = _owed_fleet(owed, common_credit, units_per_turn, available, size, speed_weight)
    fleet.times = NULL
    fleet.contexts = &contexts[0, 0]
    fleet.context_client_stride = contexts.strides[0] // <Py_ssize_t> sizeof(double)
    fleet.context_feature_stride = contexts.strides[1] // <Py_ssize_t> sizeof(double)
    fleet.bank = &bank[0, 0]
    fleet.features = <int> contexts.shape[1]
    fleet.exploration = exploration
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


def magnitude(const double[::1] numbers):
    return largest_of(&numbers[0], numbers.shape[0])

// Runs the parts of a task in threads that end with the call, so that a process can fork at any other time.

#pragma once

#include <exception>
#include <system_error>
#include <thread>
#include <vector>

namespace turnout {

// Runs task(0) to task(parts - 1) at the same time. Rethrows the exception of the first part that failed.
template <class Task>
void in_parallel(int parts, const Task& task) {
    std::vector<std::exception_ptr> failures(parts);
    const auto run = [&](int part) noexcept {
        try {
            task(part);
        } catch (...) {
            failures[part] = std::current_exception();
        }
    };
    std::vector<std::thread> threads;
    threads.reserve(parts);
    for (int part = 1; part < parts; ++part) {
        try {
            threads.emplace_back(run, part);
        } catch (const std::system_error&) {  // the system allows no more threads
            run(part);
        }
    }
    run(0);
    for (std::thread& thread : threads) thread.join();
    for (const std::exception_ptr& failure : failures)
        if (failure) std::rethrow_exception(failure);
}

}  // namespace turnout

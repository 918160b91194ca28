// Compiler attributes of performance-critical loops.

#pragma once

// Compiles one version of a loop per vector width; the dynamic loader selects one at load time.
#if defined(__gnu_linux__) && defined(__x86_64__) && defined(__GNUC__) && __GNUC__ >= 12 && !defined(__clang__)
#define TURNOUT_VECTOR __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define TURNOUT_VECTOR
#endif

#if defined(_MSC_VER)
#define TURNOUT_RESTRICT __restrict
#else
#define TURNOUT_RESTRICT __restrict__
#endif

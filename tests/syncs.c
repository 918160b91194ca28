/* Kills or stops a process inside the n-th flush of a write-ahead log, before the data reach the disk.
 *
 * Preload it: every fsync and fdatasync of a file whose name ends in "-wal" is counted from arm_sync on. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static int countdown = 0;
static int armed_signal = 0;
static int flushes = 0;

void arm_sync(int number, int signal_number) {
    countdown = number;
    armed_signal = signal_number;
    flushes = 0;
}

int count_syncs(void) { return flushes; }

static void on_flush(int descriptor) {
    char link[64], path[4096];
    snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length < 4 || memcmp(path + length - 4, "-wal", 4) != 0) return;
    flushes++;
    if (countdown > 0 && --countdown == 0) kill(getpid(), armed_signal);
}

int fsync(int descriptor) {
    on_flush(descriptor);
    return ((int (*)(int))dlsym(RTLD_NEXT, "fsync"))(descriptor);
}

int fdatasync(int descriptor) {
    on_flush(descriptor);
    return ((int (*)(int))dlsym(RTLD_NEXT, "fdatasync"))(descriptor);
}

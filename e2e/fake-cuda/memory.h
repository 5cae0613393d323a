/* What the two parts of a device's memory share: handles, and ranges of addresses. */
#pragma once
#include "driver.h"

#include <pthread.h>

struct location {
    int type, id;
};

enum { PINNED = 1, DEVICE = 1, FILE_DESCRIPTOR = 1 };

/* Memory of a device, as this process has it. */
struct handle {
    uint64_t inode, bytes;
    int fd;
    /* cuMemRelease has not been called. */
    bool kept;
    int mapped;
    bool shareable;
};

/* Of handles and ranges. */
extern pthread_mutex_t memory_mutex;
void unlock_memory(int *unused);

/* Not a multiple of 2 MiB. */
static inline bool odd(uint64_t bytes) { return bytes % GRANULARITY != 0; }
/* A handle that has not been released. */
struct handle *kept(uint64_t number);
/* New memory of a device, as a handle that is kept. */
CUresult create(struct handle **out, int gpu, uint64_t bytes, bool shareable);
/* The device that has it now: a process can be moved. */
int gpu_with(const struct handle *handle);
/* Who holds the memory of a handle; the last one's going frees it. */
void hold(uint64_t inode, int change);
/* One hold less; closes what neither a handle nor a mapping needs. */
void drop(struct handle *handle);

/* Begins a function of memory: one at a time. */
#define BEGIN_ALONE(needs)                                                       \
    BEGIN(needs);                                                                \
    int alone __attribute__((cleanup(unlock_memory))) = pthread_mutex_lock(&memory_mutex); \
    (void)alone
#define REFUSE(when, why)                            \
    if (when)                                        \
    return wrong(&call, INVALID_VALUE, why)

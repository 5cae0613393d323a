/* Pinned memory of the node. */
#define _GNU_SOURCE
#include "driver.h"

#include <pthread.h>
#include <sys/mman.h>

#define PINS 256

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static struct { char *start; size_t bytes; } pins[PINS];

bool is_pinned(const void *start, size_t bytes)
{
    bool found = false;
    pthread_mutex_lock(&mutex);
    for (int i = 0; i < PINS; i++)
        found |= pins[i].start && (const char *)start >= pins[i].start &&
                 (const char *)start + bytes <= pins[i].start + pins[i].bytes;
    pthread_mutex_unlock(&mutex);
    return found;
}

int open_pins(void)
{
    int open = 0;
    for (int i = 0; i < PINS; i++)
        open += pins[i].start != NULL;
    return open;
}

EXPORT CUresult cuMemHostAlloc(void **start, size_t bytes, unsigned int flags)
{
    BEGIN(CONTEXT);
    if (!bytes)
        return wrong(&call, INVALID_VALUE, "of no bytes");
    if (flags & ~7u)
        return wrong(&call, INVALID_VALUE, "with unknown flags");
    void *memory =
        mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
        return OUT_OF_MEMORY;
    pthread_mutex_lock(&mutex);
    int place = 0;
    while (place < PINS && pins[place].start)
        place++;
    if (place < PINS) {
        pins[place].start = *start = memory;
        pins[place].bytes = bytes;
    }
    pthread_mutex_unlock(&mutex);
    if (place == PINS)
        munmap(memory, bytes);
    return place < PINS ? SUCCESS : OUT_OF_MEMORY;
}

EXPORT CUresult cuMemFreeHost(void *start)
{
    BEGIN(CONTEXT);
    CUresult result = INVALID_VALUE;
    pthread_mutex_lock(&mutex);
    for (int i = 0; start && i < PINS && result; i++) {
        if (pins[i].start != start)
            continue;
        if (is_waiting((uint64_t)start, pins[i].bytes))
            violation(call.name, "while copies of it are under way");
        munmap(start, pins[i].bytes);
        pins[i].start = NULL;
        result = SUCCESS;
    }
    pthread_mutex_unlock(&mutex);
    return result ? wrong(&call, result, "what cuMemHostAlloc did not give") : SUCCESS;
}

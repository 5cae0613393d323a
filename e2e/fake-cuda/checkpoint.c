/* Checkpoints of processes: running, locked, checkpointed, locked, running. */
#define _GNU_SOURCE
#include "driver.h"

#include <string.h>
#include <time.h>
#include <unistd.h>

/* The place of a process that uses CUDA; -1 for none. */
static int place_of(int pid)
{
    struct shared *shared = lock();
    int found = -1;
    for (int place = 0; place < PROCESSES; place++)
        if (pid > 0 && shared->processes[place].pid == pid)
            found = place;
    unlock();
    return found;
}

/* All of a structure of 64 bytes from `from` on is reserved, and zero. */
static bool is_clear(const uint8_t *arguments, int from)
{
    for (int i = from; arguments && i < 64; i++)
        if (arguments[i])
            return false;
    return true;
}

static uint64_t now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1000ull + time.tv_nsec / 1000000;
}

/* The caller must have begun; another process than its own. */
#define TARGET(from, arguments, reserved)                                       \
    BEGIN(INITIALIZED);                                                         \
    int place = place_of(pid);                                                  \
    if (place < 0)                                                              \
        return INVALID_VALUE;                                                   \
    if (place == here())                                                        \
        return wrong(&call, INVALID_VALUE, "a process would stop itself");      \
    struct process *process = &unlocked()->processes[place];                    \
    if (!is_clear(arguments, reserved))                                         \
        return wrong(&call, INVALID_VALUE, "reserved bytes that are not zero"); \
    if (process->state != (from))                                               \
        return wrong(&call, ILLEGAL_STATE, "in another state of the process")

EXPORT CUresult cuCheckpointProcessGetState(int pid, int *state)
{
    BEGIN(INITIALIZED);
    int place = place_of(pid);
    if (place < 0)
        return INVALID_VALUE;
    *state = unlocked()->processes[place].state;
    return SUCCESS;
}

EXPORT CUresult cuCheckpointProcessLock(int pid, uint8_t *arguments)
{
    TARGET(RUNNING, arguments, 4);
    uint32_t limit = 0;
    if (arguments)
        memcpy(&limit, arguments, sizeof limit);
    process->state = LOCKED;
    uint64_t until = now() + limit;
    while (process->calls) {
        if (limit && now() >= until) {
            process->state = RUNNING;
            return NOT_READY;
        }
        usleep(1000);
    }
    return SUCCESS;
}

EXPORT CUresult cuCheckpointProcessCheckpoint(int pid, uint8_t *arguments)
{
    TARGET(LOCKED, arguments, 0);
    bool shares = false;
    struct shared *shared = lock();
    for (int i = 0; i < OBJECTS; i++)
        shares |= shared->objects[i].shareable && shared->objects[i].holders[place];
    unlock();
    if (shares)
        return NOT_SUPPORTED;
    process->state = CHECKPOINTED;
    return SUCCESS;
}

EXPORT CUresult cuCheckpointProcessRestore(int pid, uint8_t *arguments)
{
    /* Pointer and number of the pairs of devices, then reserved. */
    TARGET(CHECKPOINTED, arguments, 0);
    uint64_t bytes;
    int count = devices(&bytes);
    struct shared *shared = lock();
    process->state = LOCKED;
    bool fits = true;
    for (int gpu = 0; gpu < count; gpu++)
        fits &= used(shared, gpu) <= bytes;
    if (!fits)
        process->state = CHECKPOINTED;
    unlock();
    return fits ? SUCCESS : OUT_OF_MEMORY;
}

EXPORT CUresult cuCheckpointProcessUnlock(int pid, uint8_t *arguments)
{
    TARGET(LOCKED, arguments, 0);
    process->state = RUNNING;
    return SUCCESS;
}

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

struct pair {
    uint8_t old[16], new[16];
};

/* A device by its id; -1 for none. */
static int named(const uint8_t *id, int count)
{
    uint8_t other[16];
    for (int gpu = 0; gpu < count; gpu++) {
        uuid(gpu, other);
        if (!memcmp(id, other, sizeof other))
            return gpu;
    }
    return -1;
}

/* Which device takes the place of which. Every one is named once on each side, whatever the
 * process has seen or used of them, and one like it takes its place. */
static bool read_pairs(const struct pair *pairs, uint32_t number, int count, int *places)
{
    uint32_t olds = 0, news = 0;
    for (uint32_t i = 0; i < number; i++) {
        int old = named(pairs[i].old, count), new = named(pairs[i].new, count);
        if (old < 0 || new < 0 || olds >> old & 1 || news >> new & 1 || chip(old) != chip(new))
            return false;
        olds |= 1u << old;
        news |= 1u << new;
        places[old] = new;
    }
    return olds == (1u << count) - 1;
}

/* What a process has goes to other devices; the state is locked. */
static void relocate(struct shared *shared, int place, const int *places)
{
    struct process *process = &shared->processes[place];
    uint32_t contexts = 0;
    for (int gpu = 0; gpu < GPUS; gpu++) {
        contexts |= (process->contexts >> gpu & 1) << places[gpu];
        process->moved[gpu] = places[process->moved[gpu]];
    }
    process->contexts = contexts;
    for (int i = 0; i < OBJECTS; i++)
        if (shared->objects[i].inode && shared->objects[i].creator == place)
            shared->objects[i].gpu = places[shared->objects[i].gpu];
}

EXPORT CUresult cuCheckpointProcessRestore(int pid, uint8_t *arguments)
{
    /* Pointer and number of the pairs of devices, then reserved. Before CUDA 13 all is. */
    struct {
        const struct pair *pairs;
        uint32_t number;
    } given = {NULL, 0};
    TARGET(CHECKPOINTED, arguments, branch() < 580 ? 0 : 12);
    if (arguments)
        memcpy(&given, arguments, 12);
    if (!given.pairs != !given.number)
        return wrong(&call, INVALID_VALUE, "pairs without a number, or a number without pairs");
    uint64_t bytes;
    int count = devices(&bytes), places[GPUS], back[GPUS];
    for (int gpu = 0; gpu < GPUS; gpu++)
        places[gpu] = gpu;
    if (given.pairs && !read_pairs(given.pairs, given.number, count, places))
        return INVALID_VALUE;
    /* As some drivers do: all is well, and nothing is moved. */
    bool unmoved = ordered("unmoved", 0) >= 0;
    for (int gpu = 0; gpu < GPUS && unmoved; gpu++)
        places[gpu] = gpu;
    int code = failure("restore");
    if (code) {
        process->state = FAILED;
        return code;
    }
    for (int gpu = 0; gpu < GPUS; gpu++)
        back[places[gpu]] = gpu;
    struct shared *shared = lock();
    relocate(shared, place, places);
    process->state = LOCKED;
    bool fits = true;
    for (int gpu = 0; gpu < count; gpu++)
        fits &= used(shared, gpu) <= bytes;
    if (!fits) {
        process->state = CHECKPOINTED;
        relocate(shared, place, back);
    }
    unlock();
    return fits ? SUCCESS : OUT_OF_MEMORY;
}

EXPORT CUresult cuCheckpointProcessUnlock(int pid, uint8_t *arguments)
{
    TARGET(LOCKED, arguments, 0);
    process->state = RUNNING;
    return SUCCESS;
}

/* The fake libnvidia-ml: which devices there are, who has how much of them, and how they are. */
#define _GNU_SOURCE
#include "device.h"

#include <stdio.h>
#include <string.h>

typedef int nvmlReturn_t;
typedef struct device *nvmlDevice_t;

enum {
    SUCCESS = 0,
    UNINITIALIZED = 1,
    INVALID_ARGUMENT = 2,
    INSUFFICIENT_SIZE = 7,
    DRIVER_NOT_LOADED = 9,
    GPU_IS_LOST = 15,
    VERSION_MISMATCH = 25,
};

struct memory {
    unsigned int version;
    unsigned long long total, reserved, free, used;
};

struct process_info {
    unsigned int pid;
    unsigned long long bytes;
    unsigned int gpu_instance, compute_instance;
};

static _Atomic int users;

static nvmlReturn_t wrong(const char *call, nvmlReturn_t error, const char *why)
{
    violation(call, why);
    return error;
}

/* Begins a call; a handle is the device's number and one. */
#define BEGIN                                                       \
    if (!users)                                                     \
        return wrong(__func__, UNINITIALIZED, "before nvmlInit");   \
    uint64_t limit = 0;                                             \
    int count = devices(&limit), code = failure(__func__);          \
    (void)count;                                                    \
    if (code)                                                       \
        return code
#define BEGIN_WITH(device)                                              \
    BEGIN;                                                              \
    int gpu = (int)(intptr_t)(device) - 1;                              \
    if (gpu < 0 || gpu >= count)                                        \
        return wrong(__func__, INVALID_ARGUMENT, "no handle of a device"); \
    if (lost(gpu))                                                      \
        return GPU_IS_LOST

EXPORT nvmlReturn_t nvmlInit_v2(void)
{
    uint64_t limit;
    if (!directory() || !devices(&limit))
        return DRIVER_NOT_LOADED;
    users++;
    return SUCCESS;
}

EXPORT nvmlReturn_t nvmlShutdown(void)
{
    if (!users)
        return wrong(__func__, UNINITIALIZED, "before nvmlInit");
    users--;
    return SUCCESS;
}

EXPORT nvmlReturn_t nvmlSystemGetDriverVersion(char *text, unsigned int length)
{
    BEGIN;
    snprintf(text, length, "%d.00.00", branch());
    return SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetCount_v2(unsigned int *out)
{
    BEGIN;
    *out = count;
    return SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned int index, nvmlDevice_t *out)
{
    BEGIN;
    if (index >= (unsigned int)count)
        return wrong(__func__, INVALID_ARGUMENT, "no such device");
    if (lost(index))
        return GPU_IS_LOST;
    *out = (nvmlDevice_t)(intptr_t)(index + 1);
    return SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t device, char *text, unsigned int length)
{
    BEGIN_WITH(device);
    snprintf(text, length, "FAKE GPU %d", chip(gpu));
    return SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t device, char *text, unsigned int length)
{
    BEGIN_WITH(device);
    uint8_t id[16];
    char name[64], *at = name + sprintf(name, "GPU-");
    uuid(gpu, id);
    for (int i = 0; i < 16; i++)
        at += sprintf(at, i == 4 || i == 6 || i == 8 || i == 10 ? "-%02x" : "%02x", id[i]);
    if (strlen(name) >= length)
        return wrong(__func__, INSUFFICIENT_SIZE, "too little room");
    strcpy(text, name);
    return SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, struct memory *out)
{
    BEGIN_WITH(device);
    if (out->version != (sizeof *out | 2u << 24))
        return wrong(__func__, VERSION_MISMATCH, "another version of the structure");
    struct shared *shared = lock();
    out->total = limit;
    out->reserved = 0;
    out->used = used(shared, gpu);
    out->free = limit - out->used;
    unlock();
    return SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetMigMode(nvmlDevice_t device, unsigned int *now,
                                         unsigned int *next)
{
    BEGIN_WITH(device);
    *now = *next = ordered("mig", gpu) > 0;
    return SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetTotalEccErrors(nvmlDevice_t device, int type, int counter,
                                                unsigned long long *out)
{
    BEGIN_WITH(device);
    enum { UNCORRECTED = 1, VOLATILE = 0 };
    long errors = ordered("ecc", gpu);
    *out = errors > 0 && type == UNCORRECTED && counter == VOLATILE ? errors : 0;
    return SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t device,
                                                            unsigned int *room,
                                                            struct process_info *out)
{
    BEGIN_WITH(device);
    unsigned int found = 0;
    struct shared *shared = lock();
    for (int place = 0; place < PROCESSES; place++) {
        struct process *process = &shared->processes[place];
        if (!process->pid || !(process->contexts >> gpu & 1) || process->state == CHECKPOINTED)
            continue;
        if (out && found < *room)
            out[found] = (struct process_info){process->pid, used_by(shared, gpu, place), ~0u, ~0u};
        found++;
    }
    unlock();
    bool enough = found <= *room;
    *room = found;
    return enough ? SUCCESS : INSUFFICIENT_SIZE;
}

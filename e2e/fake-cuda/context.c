/* Initialisation, devices, primary contexts, and what every call begins with. */
#define _GNU_SOURCE
#include "driver.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static _Atomic bool initialized;
static int place = -1;
/* NVML's numbers of the devices that this process sees, in CUDA's order. */
static int order[GPUS];
static int seen;
static struct context contexts[GPUS];
static _Thread_local struct context *current;

static CUresult sick(int gpu)
{
    return lost(gpu) ? UNKNOWN : SUCCESS;
}

struct call begin(const char *name, enum needs needs)
{
    struct call call = {.name = name};
    if (needs == NOTHING)
        return call;
    if (!initialized) {
        call.error = wrong(&call, NOT_INITIALIZED, "before cuInit");
        return call;
    }
    /* The calls of a process that is locked wait. */
    struct process *process = &unlocked()->processes[place];
    for (;;) {
        process->calls++;
        if (process->state == RUNNING)
            break;
        process->calls--;
        usleep(1000);
    }
    call.counted = true;
    slowly(name);
    call.error = failure(name);
    if (call.error || needs == INITIALIZED)
        return call;
    call.context = current;
    if (!current)
        call.error = wrong(&call, INVALID_CONTEXT, "without a context of this thread");
    else if (!current->retained)
        call.error = wrong(&call, CONTEXT_IS_DESTROYED, "in a context that was given back");
    else if (current->broken)
        call.error = current->broken;
    else
        call.error = current->broken = sick(gpu_of(current->device));
    return call;
}

void end(struct call *call)
{
    if (call->counted)
        unlocked()->processes[place].calls--;
}

CUresult wrong(const struct call *call, CUresult error, const char *why)
{
    violation(call->name, why);
    return error;
}

int here(void) { return place; }

int visible(void) { return seen; }

int gpu_of(CUdevice device)
{
    return device >= 0 && device < seen ? unlocked()->processes[place].moved[order[device]] : -1;
}

static bool is_named(const char *text, int gpu)
{
    uint8_t id[16];
    char name[64], *at = name + sprintf(name, "GPU-");
    uuid(gpu, id);
    for (int i = 0; i < 16; i++)
        at += sprintf(at, i == 4 || i == 6 || i == 8 || i == 10 ? "-%02x" : "%02x", id[i]);
    return !strncmp(text, "GPU-", 4) && !strncmp(text, name, strlen(text));
}

/* By place on the bus as NVML, else in what stands for "fastest first": the other way round. */
static void number(int count)
{
    const char *by = getenv("CUDA_DEVICE_ORDER");
    bool bus = by && !strcmp(by, "PCI_BUS_ID");
    int all[GPUS];
    for (int i = 0; i < count; i++)
        all[i] = bus ? i : count - 1 - i;
    const char *mask = getenv("CUDA_VISIBLE_DEVICES");
    if (!mask) {
        memcpy(order, all, sizeof all);
        seen = count;
        return;
    }
    char *copy = strdup(mask), *rest = copy, *word;
    while ((word = strsep(&rest, ",")) && seen < GPUS) {
        char *after = NULL;
        long index = strtol(word, &after, 10);
        int gpu = -1;
        if (*word && !*after && index >= 0 && index < count)
            gpu = all[index];
        for (int i = 0; i < count && gpu < 0; i++)
            if (is_named(word, i))
                gpu = i;
        /* What follows a wrong one is not seen. */
        if (gpu < 0)
            break;
        order[seen++] = gpu;
    }
    free(copy);
}

EXPORT CUresult cuInit(unsigned int flags)
{
    BEGIN(NOTHING);
    if (flags)
        return wrong(&call, INVALID_VALUE, "flags must be 0");
    uint64_t bytes;
    int count = directory() ? devices(&bytes) : 0;
    if (!count)
        return NO_DEVICE;
    pthread_mutex_lock(&mutex);
    if (!initialized) {
        number(count);
        place = seen ? join() : -1;
        initialized = place >= 0;
    }
    pthread_mutex_unlock(&mutex);
    return initialized ? SUCCESS : NO_DEVICE;
}

__attribute__((destructor)) static void leave(void)
{
    if (!initialized)
        return;
    int open = 0;
    for (int i = 0; i < seen; i++) {
        open += contexts[i].retained;
        /* Nothing can be given back in one that has failed: the process had to end. */
        if (contexts[i].broken)
            return;
    }
    if (open || open_streams() || open_ranges() || open_handles() || open_pins())
        note("leaks", "%d contexts, %d streams, %d ranges, %d handles, %d pinned", open,
             open_streams(), open_ranges(), open_handles(), open_pins());
}

EXPORT CUresult cuDriverGetVersion(int *version)
{
    /* CUDA 13 came with branch 580. */
    *version = branch() < 580 ? 12080 : 13000;
    return SUCCESS;
}

EXPORT CUresult cuDeviceGetCount(int *count)
{
    BEGIN(INITIALIZED);
    *count = seen;
    return SUCCESS;
}

EXPORT CUresult cuDeviceGet(CUdevice *device, int ordinal)
{
    BEGIN(INITIALIZED);
    if (gpu_of(ordinal) < 0)
        return wrong(&call, INVALID_DEVICE, "no such device");
    *device = ordinal;
    return SUCCESS;
}

EXPORT CUresult cuDeviceGetName(char *name, int length, CUdevice device)
{
    BEGIN(INITIALIZED);
    if (gpu_of(device) < 0)
        return wrong(&call, INVALID_DEVICE, "no such device");
    snprintf(name, length, "FAKE GPU");
    return SUCCESS;
}

EXPORT CUresult cuDeviceGetUuid_v2(uint8_t *id, CUdevice device)
{
    BEGIN(INITIALIZED);
    if (gpu_of(device) < 0)
        return wrong(&call, INVALID_DEVICE, "no such device");
    uuid(gpu_of(device), id);
    return SUCCESS;
}

EXPORT CUresult cuDeviceGetAttribute(int *value, int attribute, CUdevice device)
{
    BEGIN(INITIALIZED);
    if (gpu_of(device) < 0)
        return wrong(&call, INVALID_DEVICE, "no such device");
    enum { VIRTUAL_MEMORY = 102, FILE_DESCRIPTORS = 103, MEMORY_POOLS = 115 };
    bool known = attribute == VIRTUAL_MEMORY || attribute == FILE_DESCRIPTORS ||
                 attribute == MEMORY_POOLS;
    if (!known)
        return wrong(&call, INVALID_VALUE, "an attribute that the fake does not have");
    *value = 1;
    return SUCCESS;
}

EXPORT CUresult cuDevicePrimaryCtxRetain(struct context **context, CUdevice device)
{
    BEGIN(INITIALIZED);
    int gpu = gpu_of(device);
    if (gpu < 0)
        return wrong(&call, INVALID_DEVICE, "no such device");
    if (sick(gpu))
        return sick(gpu);
    struct shared *shared = lock();
    uint64_t bytes;
    devices(&bytes);
    struct process *process = &shared->processes[place];
    bool there = process->contexts >> gpu & 1;
    bool room = there || used(shared, gpu) + CONTEXT_BYTES <= bytes;
    if (room) {
        process->contexts |= 1u << gpu;
        contexts[device].device = device;
        contexts[device].retained++;
    }
    unlock();
    *context = &contexts[device];
    return room ? SUCCESS : OUT_OF_MEMORY;
}

EXPORT CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device)
{
    BEGIN(INITIALIZED);
    if (gpu_of(device) < 0)
        return wrong(&call, INVALID_DEVICE, "no such device");
    struct context *context = &contexts[device];
    if (!context->retained)
        return wrong(&call, INVALID_CONTEXT, "more often than it was retained");
    if (context->retained == 1) {
        make_all(context);
        struct shared *shared = lock();
        shared->processes[place].contexts &= ~(1u << gpu_of(device));
        unlock();
    }
    context->retained--;
    return SUCCESS;
}

EXPORT CUresult cuCtxGetCurrent(struct context **context)
{
    BEGIN(INITIALIZED);
    *context = current;
    return SUCCESS;
}

EXPORT CUresult cuCtxSetCurrent(struct context *context)
{
    BEGIN(INITIALIZED);
    if (context && !context->retained)
        return wrong(&call, INVALID_CONTEXT, "a context that was given back");
    current = context;
    return SUCCESS;
}

EXPORT CUresult cuCtxSynchronize(void)
{
    BEGIN(CONTEXT);
    return make_all(call.context);
}

static const struct { CUresult code; const char *name; } errors[] = {
    {SUCCESS, "CUDA_SUCCESS"},
    {INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE"},
    {OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY"},
    {NOT_INITIALIZED, "CUDA_ERROR_NOT_INITIALIZED"},
    {NO_DEVICE, "CUDA_ERROR_NO_DEVICE"},
    {INVALID_DEVICE, "CUDA_ERROR_INVALID_DEVICE"},
    {INVALID_CONTEXT, "CUDA_ERROR_INVALID_CONTEXT"},
    {ECC_UNCORRECTABLE, "CUDA_ERROR_ECC_UNCORRECTABLE"},
    {INVALID_HANDLE, "CUDA_ERROR_INVALID_HANDLE"},
    {ILLEGAL_STATE, "CUDA_ERROR_ILLEGAL_STATE"},
    {NOT_READY, "CUDA_ERROR_NOT_READY"},
    {ILLEGAL_ADDRESS, "CUDA_ERROR_ILLEGAL_ADDRESS"},
    {CONTEXT_IS_DESTROYED, "CUDA_ERROR_CONTEXT_IS_DESTROYED"},
    {NOT_SUPPORTED, "CUDA_ERROR_NOT_SUPPORTED"},
    {UNKNOWN, "CUDA_ERROR_UNKNOWN"},
};

EXPORT CUresult cuGetErrorName(CUresult error, const char **name)
{
    *name = NULL;
    for (size_t i = 0; i < sizeof errors / sizeof *errors; i++)
        if (errors[i].code == error)
            *name = errors[i].name;
    return *name ? SUCCESS : INVALID_VALUE;
}

EXPORT CUresult cuGetErrorString(CUresult error, const char **text)
{
    return cuGetErrorName(error, text);
}

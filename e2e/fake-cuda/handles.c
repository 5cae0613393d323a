/* Handles: memory of devices that is made, shared and released. */
#define _GNU_SOURCE
#include "memory.h"

#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <sys/mman.h>

#define HANDLES 1024

struct properties {
    int type, handle_types;
    struct location location;
    void *windows;
    struct {
        uint8_t compression, rdma;
        uint16_t usage;
        uint8_t reserved[4];
    } flags;
};

pthread_mutex_t memory_mutex = PTHREAD_MUTEX_INITIALIZER;
static struct handle handles[HANDLES];

void unlock_memory(int *unused)
{
    (void)unused;
    pthread_mutex_unlock(&memory_mutex);
}

int open_handles(void)
{
    int open = 0;
    for (int i = 0; i < HANDLES; i++)
        open += handles[i].kept;
    return open;
}

static struct handle *free_handle(void)
{
    for (int i = 0; i < HANDLES; i++)
        if (!handles[i].kept && !handles[i].mapped)
            return &handles[i];
    return NULL;
}

struct handle *kept(uint64_t number)
{
    return number && number <= HANDLES && handles[number - 1].kept ? &handles[number - 1] : NULL;
}

static uint64_t number_of(const struct handle *handle) { return handle - handles + 1; }

void hold(uint64_t inode, int change)
{
    struct shared *shared = lock();
    for (int i = 0; i < OBJECTS; i++)
        if (shared->objects[i].inode == inode)
            shared->objects[i].holders[here()] += change;
    unlock();
}

int gpu_with(const struct handle *handle)
{
    int gpu = -1;
    struct shared *shared = lock();
    for (int i = 0; i < OBJECTS; i++)
        if (shared->objects[i].inode == handle->inode)
            gpu = shared->objects[i].gpu;
    unlock();
    return gpu;
}

void drop(struct handle *handle)
{
    hold(handle->inode, -1);
    if (!handle->kept && !handle->mapped)
        close(handle->fd);
}

CUresult create(struct handle **out, int gpu, uint64_t bytes, bool shareable)
{
    struct handle *handle = free_handle();
    int fd = memfd_create("fake-cuda", MFD_CLOEXEC);
    struct stat stat;
    if (!handle || fd < 0 || ftruncate(fd, bytes) || fstat(fd, &stat))
        return OUT_OF_MEMORY;
    uint64_t limit;
    devices(&limit);
    CUresult result = OUT_OF_MEMORY;
    struct shared *shared = lock();
    bool fits = used(shared, gpu) + bytes <= limit;
    for (int i = 0; i < OBJECTS && fits && result; i++) {
        struct object *object = &shared->objects[i];
        if (object->inode)
            continue;
        *object = (struct object){.inode = stat.st_ino, .bytes = bytes, .gpu = gpu,
                                  .shareable = shareable, .creator = here()};
        object->holders[here()] = 1;
        result = SUCCESS;
    }
    unlock();
    if (result) {
        close(fd);
        return result;
    }
    *handle = (struct handle){.inode = stat.st_ino, .bytes = bytes, .fd = fd, .kept = true,
                              .shareable = shareable};
    *out = handle;
    return SUCCESS;
}

EXPORT CUresult cuMemCreate(uint64_t *out, size_t bytes, const struct properties *what,
                            unsigned long long flags)
{
    BEGIN_ALONE(INITIALIZED);
    const uint8_t none[4] = {0};
    REFUSE(!bytes || odd(bytes), "the size must be a multiple of 2 MiB");
    REFUSE(flags, "flags must be 0");
    REFUSE(what->type != PINNED || what->location.type != DEVICE, "not pinned on a device");
    REFUSE(what->handle_types & ~FILE_DESCRIPTOR, "a handle type that the fake does not have");
    REFUSE(what->windows, "attributes of Windows");
    REFUSE(what->flags.compression || what->flags.rdma || what->flags.usage ||
               memcmp(what->flags.reserved, none, sizeof none),
           "allocation flags that the fake does not have");
    int gpu = gpu_of(what->location.id);
    if (gpu < 0)
        return wrong(&call, INVALID_DEVICE, "no such device");
    struct handle *handle;
    CUresult result = create(&handle, gpu, bytes, what->handle_types & FILE_DESCRIPTOR);
    if (!result)
        *out = number_of(handle);
    return result;
}

EXPORT CUresult cuMemRelease(uint64_t number)
{
    BEGIN_ALONE(INITIALIZED);
    struct handle *handle = kept(number);
    REFUSE(!handle, "no handle (any more)");
    handle->kept = false;
    drop(handle);
    return SUCCESS;
}

EXPORT CUresult cuMemExportToShareableHandle(void *out, uint64_t number, int type,
                                             unsigned long long flags)
{
    BEGIN_ALONE(INITIALIZED);
    struct handle *handle = kept(number);
    REFUSE(!handle, "no handle (any more)");
    REFUSE(flags, "flags must be 0");
    REFUSE(type != FILE_DESCRIPTOR || !handle->shareable, "not made to be shared so");
    int fd = dup(handle->fd);
    if (fd < 0)
        return OUT_OF_MEMORY;
    *(int *)out = fd;
    return SUCCESS;
}

EXPORT CUresult cuMemImportFromShareableHandle(uint64_t *out, void *os, int type)
{
    BEGIN_ALONE(INITIALIZED);
    REFUSE(type != FILE_DESCRIPTOR, "a handle type that the fake does not have");
    int fd = (int)(intptr_t)os;
    struct stat stat;
    REFUSE(fstat(fd, &stat), "no file descriptor");
    struct handle *handle = free_handle();
    int gpu = -1;
    struct shared *shared = lock();
    for (int i = 0; i < OBJECTS; i++) {
        struct object *object = &shared->objects[i];
        if (object->inode != stat.st_ino || !object->shareable || !handle)
            continue;
        gpu = object->gpu;
        object->holders[here()]++;
    }
    unlock();
    bool sees = false;
    for (int i = 0; i < visible(); i++)
        sees |= gpu_of(i) == gpu;
    REFUSE(gpu < 0 || !sees, "no memory of a device that this process sees");
    *handle = (struct handle){.inode = stat.st_ino, .bytes = stat.st_size, .fd = dup(fd),
                              .kept = true, .shareable = true};
    *out = number_of(handle);
    return SUCCESS;
}

EXPORT CUresult cuMemGetAllocationGranularity(size_t *bytes, const struct properties *what,
                                              int option)
{
    BEGIN(INITIALIZED);
    REFUSE(gpu_of(what->location.id) < 0 || option & ~1, "no such device or option");
    *bytes = GRANULARITY;
    return SUCCESS;
}

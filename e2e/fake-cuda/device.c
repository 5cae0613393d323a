/* The devices: a directory with a state that all processes map. */
#define _GNU_SOURCE
#include "device.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <unistd.h>

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static struct shared *state;
static int state_fd = -1;

const char *directory(void)
{
    const char *path = getenv("ROLLWRIGHT_FAKE_CUDA");
    return path && *path ? path : NULL;
}

static FILE *open_file(const char *name, const char *mode)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", directory() ? directory() : "/nonexistent", name);
    return fopen(path, mode);
}

int devices(uint64_t *bytes)
{
    unsigned long long memory = 0;
    int count = 0;
    FILE *file = open_file("gpus", "re");
    if (!file)
        return 0;
    if (fscanf(file, "%d %llu", &count, &memory) != 2 || count < 0 || count > GPUS)
        count = 0;
    fclose(file);
    *bytes = memory;
    return count;
}

static void map_state(void)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/state", directory());
    state_fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (state_fd < 0 || ftruncate(state_fd, sizeof *state))
        abort();
    state = mmap(NULL, sizeof *state, PROT_READ | PROT_WRITE, MAP_SHARED, state_fd, 0);
    if (state == MAP_FAILED)
        abort();
}

struct shared *unlocked(void)
{
    pthread_once(&once, map_state);
    return state;
}

/* When a process began; 0 for one that has ended. */
static uint64_t began(int pid)
{
    char path[64], line[1024];
    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    FILE *file = fopen(path, "re");
    if (!file)
        return 0;
    char *read = fgets(line, sizeof line, file);
    fclose(file);
    char *rest = read ? strrchr(line, ')') : NULL;
    char status = 0;
    unsigned long long ticks = 0;
    if (!rest || sscanf(rest, ") %c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d %*d "
                        "%*d %*d %*d %llu", &status, &ticks) != 2)
        return 0;
    return status == 'Z' || status == 'X' ? 0 : ticks;
}

static void bury(struct shared *shared, int place)
{
    memset(&shared->processes[place], 0, sizeof shared->processes[place]);
    for (int i = 0; i < OBJECTS; i++) {
        struct object *object = &shared->objects[i];
        object->holders[place] = 0;
        if (object->creator == place)
            object->creator = -1;
    }
}

static bool is_held(const struct object *object)
{
    for (int place = 0; place < PROCESSES; place++)
        if (object->holders[place])
            return true;
    return false;
}

struct shared *lock(void)
{
    struct shared *shared = unlocked();
    pthread_mutex_lock(&mutex);
    while (flock(state_fd, LOCK_EX) && errno == EINTR)
        ;
    for (int place = 0; place < PROCESSES; place++) {
        struct process *process = &shared->processes[place];
        if (process->pid && began(process->pid) != process->began)
            bury(shared, place);
    }
    for (int i = 0; i < OBJECTS; i++)
        if (shared->objects[i].inode && !is_held(&shared->objects[i]))
            memset(&shared->objects[i], 0, sizeof shared->objects[i]);
    return shared;
}

int join(void)
{
    struct shared *shared = lock();
    int found = -1;
    for (int place = 0; place < PROCESSES && found < 0; place++)
        if (shared->processes[place].pid == getpid())
            found = place;
    for (int place = 0; place < PROCESSES && found < 0; place++)
        if (!shared->processes[place].pid) {
            shared->processes[place].pid = getpid();
            shared->processes[place].began = began(getpid());
            for (int gpu = 0; gpu < GPUS; gpu++)
                shared->processes[place].moved[gpu] = gpu;
            found = place;
        }
    unlock();
    return found;
}

void unlock(void)
{
    flock(state_fd, LOCK_UN);
    pthread_mutex_unlock(&mutex);
}

uint64_t used_by(struct shared *shared, int gpu, int place)
{
    if (shared->processes[place].state == CHECKPOINTED)
        return 0;
    uint64_t bytes = shared->processes[place].contexts >> gpu & 1 ? CONTEXT_BYTES : 0;
    for (int i = 0; i < OBJECTS; i++) {
        struct object *object = &shared->objects[i];
        if (object->inode && object->gpu == gpu && object->creator == place)
            bytes += object->bytes;
    }
    return bytes;
}

uint64_t used(struct shared *shared, int gpu)
{
    uint64_t bytes = 0;
    for (int place = 0; place < PROCESSES; place++)
        bytes += used_by(shared, gpu, place);
    for (int i = 0; i < OBJECTS; i++) {
        struct object *object = &shared->objects[i];
        if (object->inode && object->gpu == gpu && object->creator < 0)
            bytes += object->bytes;
    }
    return bytes;
}

long ordered(const char *prefix, int gpu)
{
    char name[64];
    long number = 0;
    snprintf(name, sizeof name, "%s-%d", prefix, gpu);
    FILE *file = open_file(name, "re");
    if (!file)
        return -1;
    if (fscanf(file, "%ld", &number) != 1)
        number = 0;
    fclose(file);
    return number;
}

bool lost(int gpu)
{
    return ordered("lost", gpu) >= 0;
}

int branch(void)
{
    int number = 580;
    FILE *file = open_file("branch", "re");
    if (!file)
        return number;
    if (fscanf(file, "%d", &number) != 1)
        number = 580;
    fclose(file);
    return number;
}

int chip(int gpu)
{
    long number = ordered("chip", gpu);
    return number > 0 ? (int)number : 0;
}

int failure(const char *call)
{
    char name[128];
    int code = 0, skip = 0;
    snprintf(name, sizeof name, "fail-%s", call);
    /* Only one call takes it. */
    struct shared *shared = lock();
    (void)shared;
    FILE *file = open_file(name, "r+e");
    if (file) {
        if (fscanf(file, "%d %d", &code, &skip) < 1)
            code = 0;
        if (skip > 0) {
            rewind(file);
            fprintf(file, "%d %d  ", code, skip - 1);
            code = 0;
        }
        fclose(file);
        if (code) {
            char path[4096];
            snprintf(path, sizeof path, "%s/%s", directory(), name);
            unlink(path);
        }
    }
    unlock();
    return code;
}

void slowly(const char *call)
{
    char name[128];
    unsigned int wait = 0;
    snprintf(name, sizeof name, "slow-%s", call);
    FILE *file = open_file(name, "re");
    if (!file)
        return;
    if (fscanf(file, "%u", &wait) == 1)
        usleep(wait * 1000);
    fclose(file);
}

void note(const char *name, const char *format, ...)
{
    char line[512];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(line, sizeof line, format, arguments);
    va_end(arguments);
    FILE *file = open_file(name, "ae");
    if (!file)
        return;
    fprintf(file, "process %d: %s\n", getpid(), line);
    fclose(file);
}

void violation(const char *call, const char *why)
{
    note("violations", "%s: %s", call, why);
}

void uuid(int gpu, uint8_t id[16])
{
    for (int i = 0; i < 16; i++)
        id[i] = (uint8_t)(0xfa + 31 * i + gpu);
}

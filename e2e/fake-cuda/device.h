/* The devices, which all processes share. */
#pragma once
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#define EXPORT __attribute__((visibility("default")))
#define GPUS 8
#define PROCESSES 64
#define OBJECTS 1024
#define GRANULARITY (2ull << 20)
/* Bytes of a device that a context takes. */
#define CONTEXT_BYTES (8ull << 20)

/* As CUprocessState numbers them. */
enum process_state { RUNNING, LOCKED, CHECKPOINTED, FAILED };

/* A process that has called cuInit. */
struct process {
    int pid;
    /* When it began, in ticks: numbers of processes are used again. */
    uint64_t began;
    _Atomic int state;
    /* Calls under way. */
    _Atomic int calls;
    /* Devices on which it has a context, as bits. */
    _Atomic uint32_t contexts;
    /* Of each device as it was when the process began: which has taken its place. */
    _Atomic uint8_t moved[GPUS];
};

/* Memory of a device: a file in memory, known by its inode. */
struct object {
    uint64_t inode;
    uint64_t bytes;
    int gpu;
    /* It may be handed to another process. */
    bool shareable;
    /* Place of the process that made it, -1 once that has ended. */
    int creator;
    /* Handles and mappings of each process. */
    uint16_t holders[PROCESSES];
};

struct shared {
    struct process processes[PROCESSES];
    struct object objects[OBJECTS];
};

/* The directory of the devices; NULL where there is none. */
const char *directory(void);
/* Number of devices, and bytes of each; 0 where there is no driver. */
int devices(uint64_t *bytes);
/* The shared state, locked until `unlock`. Processes that have ended are gone from it. */
struct shared *lock(void);
void unlock(void);
/* The place of this process, which is known from now on; -1 where there is no room. */
int join(void);
/* The shared state, for what is atomic. */
struct shared *unlocked(void);
/* Bytes of a device that are taken; the state is locked. */
uint64_t used(struct shared *shared, int gpu);
/* Of that, what the process at a place made. One that is checkpointed has none. */
uint64_t used_by(struct shared *shared, int gpu, int place);

/* A number in a file of the directory, such as `ecc-0`; -1 where it is not there. */
long ordered(const char *prefix, int gpu);
bool lost(int gpu);
/* Branch of the driver, such as 580; and which chip a device has, the same as others or not. */
int branch(void);
int chip(int gpu);
/* The error that was ordered for a call, once; 0 for none. */
int failure(const char *call);
/* Waits as long as was ordered for a call. */
void slowly(const char *call);
void violation(const char *call, const char *why);
/* Adds a line to a file of the directory. */
void note(const char *file, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* The 16 bytes of a device's id. */
void uuid(int gpu, uint8_t id[16]);

// Framewright for kernels: freestanding C, no library, no heap. The kernel gives memory for the tables, says on which CPU
// it is, and sees to exclusion.
//
// Rules:
// - While a function runs as CPU n, no other call as CPU n runs, on that CPU or another: interrupts and preemption are off,
//   or the kernel holds a lock of its own for that CPU. Zones have locks in the tables; a CPU that waits for one calls
//   fwk_relax.
// - Frame numbers are physical addresses divided by 4096. The allocator never touches the frames themselves.
#ifndef FRAMEWRIGHT_KERNEL_H
#define FRAMEWRIGHT_KERNEL_H

#include <stddef.h>
#include <stdint.h>

#if defined(__GNUC__)
#define FWK_NORETURN __attribute__((noreturn))
#elif defined(__cplusplus)
#define FWK_NORETURN [[noreturn]]
#else
#define FWK_NORETURN _Noreturn
#endif

#ifdef __cplusplus
extern "C" {
#endif

#define FWK_NO_FRAME UINT64_MAX
#define FWK_MAX_ORDER 10

enum { FWK_UNMOVABLE = 0, FWK_MOVABLE = 1, FWK_RECLAIMABLE = 2 };

// What the allocator needs to know before it can say how much memory its tables take.
struct fwk_machine {
  uint64_t first;  // first frame, a multiple of 1024
  uint64_t frames; // frames spanned, holes included; at most 2^28
  uint32_t cpus;   // 1 to 65535
};

struct fwk; // the tables

// Bytes that the tables take; 0 if the machine makes no sense.
uint64_t fwk_bytes(const struct fwk_machine *machine);

// Makes the tables in `memory`: fwk_bytes bytes of zeroes at a multiple of 4096, the allocator's from now on. NULL if the
// machine makes no sense, or `memory` is NULL or misaligned. No frame can be had before fwk_add.
struct fwk *fwk_init(void *memory, const struct fwk_machine *machine);

// Gives the allocator frames; the rest of the machine's are holes. 0, or -1 if they are not the machine's or were given
// before. Call fwk_ready when all are there: it sizes the per-CPU lists.
int fwk_add(struct fwk *fwk, uint64_t first, uint64_t frames);
void fwk_ready(struct fwk *fwk);

// 2^order frames, aligned to their size, as CPU `cpu`; FWK_NO_FRAME if there are none, or an argument is out of range.
// What the lists of other CPUs hold it only asks for: they give it back at their next free, or allocation that finds its
// list empty. Before a kernel gives up, it calls fwk_drain as each of them, and tries again.
uint64_t fwk_alloc(struct fwk *fwk, uint32_t cpu, uint32_t order, uint32_t type);
// Frees a block that any CPU has allocated. 0, or -1 if the free is wrong: nothing has changed then.
int fwk_free(struct fwk *fwk, uint32_t cpu, uint64_t frame, uint32_t order);
// Gives back what the lists of `cpu` hold.
void fwk_drain(struct fwk *fwk, uint32_t cpu);

// Frames that are free, on lists or not. A racy sum while CPUs are busy.
uint64_t fwk_free_frames(const struct fwk *fwk);
// Checks every invariant while no CPU allocates or frees. Frames that are allocated; UINT64_MAX if one does not hold.
uint64_t fwk_verify(const struct fwk *fwk);

// What the kernel gives; and memcpy, memmove, memset, memcmp and bcmp, which compilers call by themselves.
void fwk_relax(void);           // a pause, while another CPU holds a zone's lock
uint64_t fwk_now_ns(void);      // a clock that never goes back on one CPU; may return 0
FWK_NORETURN void fwk_panic(void); // an invariant is broken: stops the machine

#ifdef __cplusplus
}
#endif

#endif

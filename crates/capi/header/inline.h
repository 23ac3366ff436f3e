// ---- hits without a call ----------------------------------------------------------------------------------
// An allocation of a single movable frame that this thread's list has, and the free of the frame that it allocated last, need
// no call: the functions below read and write the list in the caller's own code, and call the library for all else. With
// FW_NO_INLINE defined, or another compiler or processor, every use is a call. The address of fw_alloc is the library's.
#if defined(__GNUC__) && defined(__x86_64__) && defined(__LP64__) && !defined(FW_NO_INLINE)

// What a handle begins with. A library that keeps something else there has NULL as its first member, so that programs built
// with this header call it. Members are of another type than what the list holds: the compiler knows then that a hit
// leaves them as they are.
struct fw_hits {
  const void *thread;            // the address of its control block
  volatile uint64_t *list;       // top, floor, ceiling
  volatile uint64_t *slots;
  unsigned long long mask;
  volatile const uint64_t *heads;
  unsigned long long first, frames;
};

static __inline__ __attribute__((always_inline, unused)) const struct fw_hits *fw_hits_of(const struct fw_cpu *cpu) {
  const struct fw_hits *hits = (const struct fw_hits *)(const void *)cpu;
  const void *thread;
  __asm__("movq %%fs:0, %0" : "=r"(thread));
  return __builtin_expect(cpu != NULL && hits->thread == thread, 1) ? hits : NULL;
}

static __inline__ __attribute__((always_inline, unused)) uint64_t fw_alloc_page_inline(struct fw_cpu *cpu) {
  const struct fw_hits *hits = fw_hits_of(cpu);
  if (__builtin_expect(hits != NULL, 1)) {
    uint64_t top = hits->list[0];
    if (__builtin_expect(top > hits->list[1], 1)) {
      hits->list[0] = --top;
      return hits->slots[top & hits->mask];
    }
  }
  return fw_alloc_page(cpu);
}

static __inline__ __attribute__((always_inline, unused)) fw_status fw_free_page_inline(struct fw_cpu *cpu, uint64_t pfn) {
  const struct fw_hits *hits = fw_hits_of(cpu);
  if (__builtin_expect(hits != NULL, 1)) {
    uint64_t frame = pfn - hits->first;
    if (__builtin_expect(frame < hits->frames, 1)) {
      uint64_t top = hits->list[0];
      if (__builtin_expect(hits->heads[frame] == top && top < hits->list[2], 1)) {
        hits->slots[top & hits->mask] = pfn;
        hits->list[0] = top + 1;
        return FW_OK;
      }
    }
  }
  return fw_free_page(cpu, pfn);
}

static __inline__ __attribute__((always_inline, unused)) uint64_t fw_alloc_inline(struct fw_cpu *cpu, uint32_t order,
                                                                                  uint32_t migratetype) {
  return order == 0 && migratetype == FW_MOVABLE ? fw_alloc_page_inline(cpu) : fw_alloc(cpu, order, migratetype);
}

static __inline__ __attribute__((always_inline, unused)) fw_status fw_free_inline(struct fw_cpu *cpu, uint64_t pfn,
                                                                                  uint32_t order) {
  return order == 0 ? fw_free_page_inline(cpu, pfn) : fw_free(cpu, pfn, order);
}

#define fw_alloc_page(cpu) fw_alloc_page_inline(cpu)
#define fw_free_page(cpu, pfn) fw_free_page_inline(cpu, pfn)
#define fw_alloc(cpu, order, migratetype) fw_alloc_inline(cpu, order, migratetype)
#define fw_free(cpu, pfn, order) fw_free_inline(cpu, pfn, order)

#endif // hits without a call

// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * Replays a list of allocations and frees on Linux' own page allocator and tells what its per-CPU lists did.
 *
 * The list is /ops.bin; `fidelity --ops` (tools/fidelity) writes it. The answer is /proc/framewright, one line for
 * each operation that refilled or drained a list, and the state of the zone before and after.
 *
 * With bench=1 it then tells what an allocation and a free cost, in ticks of the time stamp counter: lines like those of
 * `kernel/run bench`. In an emulator that counts instructions (-icount), a tick is one.
 *
 * Only ZONE_MOVABLE is looked at and allocated from. With `movablecore=` on the kernel's command line and no other
 * program running, no other task uses that zone meanwhile.
 */
#include <linux/module.h>
#include <linux/math64.h>
#include <linux/kernel_read_file.h>
#include <linux/kthread.h>
#include <linux/mm.h>
#include <linux/proc_fs.h>
#include <linux/seq_file.h>
#include <linux/tracepoint.h>
#include <linux/version.h>
#include <linux/vmalloc.h>
#include <asm/msr.h>

static bool bench;
module_param(bench, bool, 0444);

#define MAGIC 0x504f5746 /* "FWOP" */
#define FREE (1u << 31)
#define ORDER(op) ((op) >> 27 & 15)
#define CPU(op) ((op) >> 23 & 15)
#define SLOT(op) ((op) & ((1u << 23) - 1))
#define MOST_CPUS 16
#ifndef NR_PAGE_ORDERS
#define NR_PAGE_ORDERS MAX_ORDER
#endif
/* From 6.7 on `high` moves between two bounds, and other history is kept. */
#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 7, 0)
#define HISTORY(pcp) ((pcp)->free_count)
#define HIGH_MIN(pcp) ((pcp)->high_min)
#define HIGH_MAX(pcp) ((pcp)->high_max)
#else
#define HISTORY(pcp) ((pcp)->free_factor)
#define HIGH_MIN(pcp) ((pcp)->high)
#define HIGH_MAX(pcp) ((pcp)->high)
#endif

struct header {
	u32 magic, count, slots, cpus;
};

/* What one operation made the lists do. */
struct record {
	u32 op, cpu, refilled, drained, count, factor, high, frames;
};

static struct header *head;
static u32 *ops;
static struct page **slots; /* what each slot holds */
static struct record *records;
static u32 nr_records, failed, elsewhere;
static struct zone *movable;
/* What frames are counted from: a multiple of the largest block. */
static unsigned long base;
/* Of all frames handed out so far, in order. */
static u32 frames = 2166136261u;

/* Pages that moved during the operation that runs on a CPU; written by the probes there. */
static DEFINE_PER_CPU(u32, refilled);
static DEFINE_PER_CPU(u32, drained);

static void on_zone_locked(void *data, struct page *page, unsigned int order, int migratetype, int refill)
{
	if (page_zone(page) == movable && refill)
		this_cpu_add(refilled, 1u << order);
}

static void on_drain(void *data, struct page *page, unsigned int order, int migratetype)
{
	if (page_zone(page) == movable)
		this_cpu_add(drained, 1u << order);
}

static struct tracepoint *zone_locked, *pcpu_drain;

static void find_tracepoint(struct tracepoint *tracepoint, void *data)
{
	if (!strcmp(tracepoint->name, "mm_page_alloc_zone_locked"))
		zone_locked = tracepoint;
	if (!strcmp(tracepoint->name, "mm_page_pcpu_drain"))
		pcpu_drain = tracepoint;
}

/* The zone's free blocks by order, and the lists of each CPU. */
struct state {
	unsigned long free[NR_PAGE_ORDERS];
	unsigned long managed, free_pages;
	int count[MOST_CPUS], high_min, high_max, batch, high[MOST_CPUS], factor[MOST_CPUS];
	/* Blocks on each list, as order_to_pindex() numbers them. */
	int blocks[MOST_CPUS][NR_PCP_LISTS];
};
static struct state before, after;

static void look(struct state *state)
{
	int order, cpu, list;

	state->managed = zone_managed_pages(movable);
	state->free_pages = zone_page_state(movable, NR_FREE_PAGES);
	for (order = 0; order < NR_PAGE_ORDERS; order++)
		state->free[order] = movable->free_area[order].nr_free;
	for (cpu = 0; cpu < head->cpus; cpu++) {
		struct per_cpu_pages *pcp = per_cpu_ptr(movable->per_cpu_pageset, cpu);
		struct list_head *block;

		state->count[cpu] = pcp->count;
		state->factor[cpu] = HISTORY(pcp);
		state->high[cpu] = pcp->high;
		state->high_min = HIGH_MIN(pcp);
		state->high_max = HIGH_MAX(pcp);
		state->batch = pcp->batch;
		/* No other task runs on that CPU, or uses the zone. */
		for (list = 0; list < NR_PCP_LISTS; list++)
			list_for_each(block, &pcp->lists[list])
				state->blocks[cpu][list]++;
	}
}

/* Where every free block lay before the first operation: on the zone's lists and on those of CPUs, first to last. */
static struct run {
	int cpu, list, type; /* A zone's list: no CPU, and its order and migratetype. */
	u32 first, count;
} runs[NR_PAGE_ORDERS * MIGRATE_TYPES + MOST_CPUS * NR_PCP_LISTS];
static u32 nr_runs, *places, nr_places;
#define MOST_PLACES (1u << 20)

static void note_list(struct list_head *list, int cpu, int number, int type)
{
	struct run *run = &runs[nr_runs];
	struct page *page;

	*run = (struct run){ .cpu = cpu, .list = number, .type = type, .first = nr_places };
	list_for_each_entry(page, list, lru)
		if (nr_places < MOST_PLACES)
			places[nr_places++] = page_to_pfn(page) - base;
	run->count = nr_places - run->first;
	if (run->count)
		nr_runs++;
}

static void note_lists(void)
{
	int order, type, cpu, list;

	for (order = 0; order < NR_PAGE_ORDERS; order++)
		for (type = 0; type < MIGRATE_TYPES; type++)
			note_list(&movable->free_area[order].free_list[type], -1, order, type);
	for (cpu = 0; cpu < head->cpus; cpu++)
		for (list = 0; list < NR_PCP_LISTS; list++)
			note_list(&per_cpu_ptr(movable->per_cpu_pageset, cpu)->lists[list], cpu, list, 0);
}

static struct page *get(int order)
{
	return alloc_pages((GFP_HIGHUSER_MOVABLE & ~__GFP_RECLAIM) | __GFP_NOWARN, order);
}

/* Runs one operation on this CPU. */
static void run(u32 index)
{
	u32 op = ops[index];
	struct page **slot = &slots[SLOT(op)];
	u32 in, out;

	this_cpu_write(refilled, 0);
	this_cpu_write(drained, 0);
	if (op & FREE) {
		if (*slot)
			__free_pages(*slot, ORDER(op));
		*slot = NULL;
	} else {
		*slot = get(ORDER(op));
		if (!*slot)
			failed++;
		else if (page_zone(*slot) != movable)
			elsewhere++;
		else
			frames = (frames ^ (u32)(page_to_pfn(*slot) - base)) * 16777619u;
	}
	in = this_cpu_read(refilled);
	out = this_cpu_read(drained);
	if (in || out) {
		struct per_cpu_pages *pcp = this_cpu_ptr(movable->per_cpu_pageset);
		struct record *record = &records[nr_records++];

		*record = (struct record){ .op = index, .cpu = smp_processor_id(), .refilled = in, .drained = out,
					   .count = pcp->count, .factor = HISTORY(pcp), .high = pcp->high,
					   .frames = frames };
	}
}

/* So many allocations or frees in a row, and nothing of what was before them counts for the next refill or drain. */
#define FORGET 16

/*
 * Allocates of every order that has lists until a list was refilled. Then each holds one block less than a refill,
 * whatever was there before. The blocks stay allocated. At the end no free and no allocation counts as one in a row.
 */
static void fill_lists(void)
{
	static const int orders[] = { 0, 1, 2, 3, 9 };
	struct page *pages[FORGET];
	int i, tries;

	for (i = 0; i < ARRAY_SIZE(orders); i++) {
		this_cpu_write(refilled, 0);
		for (tries = 0; tries < 100000 && !this_cpu_read(refilled); tries++)
			get(orders[i]);
	}
	for (i = 0; i < FORGET; i++)
		pages[i] = get(0);
	for (i = 0; i < FORGET; i++)
		if (pages[i])
			__free_pages(pages[i], 0);
	for (i = 0; i < FORGET; i++)
		get(0);
}

/* As the bench scenario of our kernel has them. */
#define PAIRS 10000
#define BURST 512
#define ROUNDS 64

/* Ticks in all, by what was done. */
static struct cost {
	const char *name, *unit;
	int order;
	u64 ticks, operations;
} costs[16];
static int nr_costs;

static void cost(const char *name, const char *unit, int order, u64 ticks, u64 operations)
{
	if (nr_costs < ARRAY_SIZE(costs))
		costs[nr_costs++] = (struct cost){ name, unit, order, ticks, operations };
}

/* One block again and again; then many blocks allocated, and freed in the same order. */
static void measure(int order, struct page **pages)
{
	int timed, round, i, burst = order ? BURST / 8 : BURST;
	u64 gets = 0, puts = 0;

	for (timed = 0; timed < 2; timed++) {
		u64 begin = rdtsc_ordered();

		for (i = 0; i < PAIRS; i++)
			__free_pages(get(order), order);
		if (timed)
			cost("hot_pair", "ticks/pair", order, rdtsc_ordered() - begin, PAIRS);
	}
	for (round = 0; round < ROUNDS + 8; round++) {
		u64 begin = rdtsc_ordered(), middle;

		for (i = 0; i < burst; i++)
			pages[i] = get(order);
		middle = rdtsc_ordered();
		for (i = 0; i < burst; i++)
			if (pages[i])
				__free_pages(pages[i], order);
		if (round >= 8) {
			gets += middle - begin;
			puts += rdtsc_ordered() - middle;
		}
	}
	cost("burst_get", "ticks", order, gets, ROUNDS * burst);
	cost("burst_put", "ticks", order, puts, ROUNDS * burst);
	cost("burst_pair", "ticks/pair", order, gets + puts, ROUNDS * burst);
}

/* One thread for each CPU; an operation runs when its turn has come. */
static u32 turn, filled;
static struct completion ended[MOST_CPUS];

static int worker(void *data)
{
	u32 cpu = (long)data, index;

	while (smp_load_acquire(&filled) != cpu)
		cpu_relax();
	preempt_disable();
	fill_lists();
	if (cpu == head->cpus - 1) {
		look(&before);
		note_lists();
	}
	preempt_enable();
	smp_store_release(&filled, cpu + 1);
	while (smp_load_acquire(&filled) != head->cpus)
		cpu_relax();
	for (index = 0; index < head->count; index++) {
		if (CPU(ops[index]) != cpu)
			continue;
		while (smp_load_acquire(&turn) != index)
			cpu_relax();
		preempt_disable();
		run(index);
		preempt_enable();
		smp_store_release(&turn, index + 1);
		if (!(index & 1023))
			cond_resched();
	}
	complete(&ended[cpu]);
	return 0;
}

static void show_state(struct seq_file *m, const char *name, struct state *state)
{
	int order, cpu, list;

	seq_printf(m, "STATE %s managed %lu free %lu batch %d high_min %d high_max %d free_blocks", name, state->managed,
		   state->free_pages, state->batch, state->high_min, state->high_max);
	for (order = 0; order < NR_PAGE_ORDERS; order++)
		seq_printf(m, " %lu", state->free[order]);
	for (cpu = 0; cpu < head->cpus; cpu++) {
		seq_printf(m, " cpu %d count %d high %d factor %d lists", cpu, state->count[cpu], state->high[cpu],
			   state->factor[cpu]);
		for (list = 0; list < NR_PCP_LISTS; list++)
			seq_printf(m, " %d", state->blocks[cpu][list]);
	}
	seq_putc(m, '\n');
}

/* What the sizes of lists are computed from. */
static void show_zones(struct seq_file *m)
{
	struct zone *zone = NODE_DATA(0)->node_zones;
	int i;

	for (i = 0; i < MAX_NR_ZONES; i++, zone++)
		if (zone_managed_pages(zone))
			seq_printf(m, "ZONE %s managed %lu low %lu high %lu\n", zone->name, zone_managed_pages(zone),
				   low_wmark_pages(zone), high_wmark_pages(zone));
}

static void show_runs(struct seq_file *m)
{
	u32 i, n;

	seq_printf(m, "SPAN %lu\n", zone_end_pfn(movable) - base);
	for (i = 0; i < nr_runs; i++) {
		if (runs[i].cpu < 0)
			seq_printf(m, "FREE %d %d", runs[i].list, runs[i].type);
		else
			seq_printf(m, "LIST %d %d", runs[i].cpu, runs[i].list);
		for (n = 0; n < runs[i].count; n++)
			seq_printf(m, " %u", places[runs[i].first + n]);
		seq_putc(m, '\n');
	}
}

static void *start(struct seq_file *m, loff_t *pos)
{
	return *pos <= nr_records ? pos : NULL;
}

static void *next(struct seq_file *m, void *v, loff_t *pos)
{
	++*pos;
	return start(m, pos);
}

static void stop(struct seq_file *m, void *v)
{
}

static int show(struct seq_file *m, void *v)
{
	loff_t n = *(loff_t *)v;
	struct record *r = &records[n];
	int i;

	if (n < nr_records) {
		seq_printf(m, "OP %u %u %u %u %u %u %u %u\n", r->op, r->cpu, r->refilled, r->drained, r->count,
			   r->factor, r->high, r->frames);
		return 0;
	}
	for (i = 0; i < nr_costs; i++) {
		u64 hundredths = div64_u64(costs[i].ticks * 100, costs[i].operations);

		seq_printf(m, "bench: %s[order=%d,cpus=1] %llu.%02llu %s\n", costs[i].name, costs[i].order,
			   hundredths / 100, hundredths % 100, costs[i].unit);
	}
	show_zones(m);
	show_runs(m);
	show_state(m, "before", &before);
	show_state(m, "after", &after);
	seq_printf(m, "DONE ops %u records %u failed %u elsewhere %u\n", head->count, nr_records, failed, elsewhere);
	return 0;
}

static const struct seq_operations answer = { .start = start, .next = next, .stop = stop, .show = show };

static int __init replay_init(void)
{
	struct task_struct *threads[MOST_CPUS] = {};
	void *bytes = NULL;
	size_t size = 0;
	u32 cpu;
	int error;

	movable = &NODE_DATA(0)->node_zones[ZONE_MOVABLE];
	if (!zone_managed_pages(movable))
		return pr_err("framewright: no memory in ZONE_MOVABLE\n"), -ENOMEM;
	base = round_down(movable->zone_start_pfn, 1024);
	places = vzalloc(sizeof(*places) * MOST_PLACES);
	if (!places)
		return -ENOMEM;
	error = kernel_read_file_from_path("/ops.bin", 0, &bytes, INT_MAX, &size, READING_UNKNOWN);
	if (error < 0)
		return error;
	head = bytes;
	ops = (u32 *)(head + 1);
	if (size < sizeof(*head) || head->magic != MAGIC || size - sizeof(*head) != 4ul * head->count ||
	    head->cpus < 1 || head->cpus > MOST_CPUS || head->cpus > num_online_cpus())
		return pr_err("framewright: /ops.bin does not fit this machine\n"), -EINVAL;
	for (cpu = 0; cpu < head->count; cpu++)
		if (SLOT(ops[cpu]) >= head->slots || CPU(ops[cpu]) >= head->cpus || ORDER(ops[cpu]) >= NR_PAGE_ORDERS)
			return -EINVAL;
	slots = vzalloc(sizeof(*slots) * head->slots);
	records = vzalloc(sizeof(*records) * (head->count + 1ul));
	for_each_kernel_tracepoint(find_tracepoint, NULL);
	if (!slots || !records || !zone_locked || !pcpu_drain)
		return -ENOMEM;
	error = tracepoint_probe_register(zone_locked, on_zone_locked, NULL);
	error = error ?: tracepoint_probe_register(pcpu_drain, on_drain, NULL);
	if (error)
		return error;
	for (cpu = 0; cpu < head->cpus; cpu++) {
		threads[cpu] = kthread_create(worker, (void *)(long)cpu, "replay/%u", cpu);
		if (IS_ERR(threads[cpu]))
			return PTR_ERR(threads[cpu]);
		kthread_bind(threads[cpu], cpu);
		init_completion(&ended[cpu]);
	}
	for (cpu = 0; cpu < head->cpus; cpu++)
		wake_up_process(threads[cpu]);
	for (cpu = 0; cpu < head->cpus; cpu++)
		wait_for_completion(&ended[cpu]);
	look(&after);
	tracepoint_probe_unregister(zone_locked, on_zone_locked, NULL);
	tracepoint_probe_unregister(pcpu_drain, on_drain, NULL);
	tracepoint_synchronize_unregister();
	if (bench) {
		struct page **pages = vzalloc(sizeof(*pages) * BURST);

		if (!pages)
			return -ENOMEM;
		preempt_disable();
		measure(0, pages);
		measure(3, pages);
		measure(9, pages);
		preempt_enable();
		vfree(pages);
	}
	proc_create_seq("framewright", 0444, NULL, &answer);
	return 0;
}
/* It stays until the machine stops: the answer is read from it. */
module_init(replay_init);
MODULE_LICENSE("Dual MIT/GPL");
MODULE_DESCRIPTION("replays page allocations and tells what the per-CPU lists did");

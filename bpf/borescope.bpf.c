// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * The sampler's programs. `tick` runs in the hard interrupt of a per-CPU cpu-clock event and writes one record a sample; the
 * tracepoint programs follow processes and cgroups, so that a tick finds everything it needs by look-ups; the iterators bring in
 * what existed before.
 *
 * Rules: a tick allocates nothing (task storage is created by the other programs only) and reads user memory only through the
 * walk of bpf/lib/user_stack.h and where it copies a stack; each loop step with branches is a global function, which the verifier looks at once.
 */
#include "bpf/lib/kernel.h"

#include "bpf/abi/control.h"
#include "bpf/abi/record.h"
#include "bpf/lib/user_stack.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";

#define TICK_LIMIT_NS 150000 /* the hard stop in the interrupt */
#define MAX_FRAMES (BORESCOPE_MAX_KERNEL_FRAMES + BORESCOPE_MAX_USER_FRAMES)
/* What may follow the frames of a record: bpf/abi/record.h. */
#define TAIL_WORDS ((sizeof(struct borescope_missing_file) + sizeof(struct borescope_raw)) / 8)
#define RAW_PER_PROCESS 64
#define RAW_PER_SECOND (512 << 10) /* bytes, of the node */
#define KEEP_ALL (1ull << 32)
#define PID_NAMESPACE_LEVELS 32

/* What we know of a task. It lives in task storage: found without a hash, freed with the task. */
struct slot {
	u64 space;  /* address-space slot; forked processes share it until exec */
	u64 mm;     /* the address space that `space` was given for, as a number */
	u64 wanted; /* jobs that selected its thread group; inherited at fork */
	u64 jobs;   /* jobs to which its run time is charged since base_ns */
	u64 base_ns;
	u32 epoch;  /* slots of an earlier session are as if absent */
	u32 tgid, tid; /* in the sampler's PID namespace; 0: not in it */
	u32 raws;      /* raw samples of the process, in its leader's slot */
	u32 execing;   /* its address space is new, and no sample has seen the end of the exec */
};

struct scratch {
	u32 busy;
	u32 pad;
	struct borescope_sample sample;
	u64 words[MAX_FRAMES + TAIL_WORDS + BORESCOPE_RAW_BYTES / 8];
};

/* A record of the test mode: too long for a per-CPU map. */
struct raw_test {
	struct borescope_sample sample;
	u64 words[MAX_FRAMES + TAIL_WORDS + BORESCOPE_RAW_TEST_BYTES / 8];
};

struct cgroup_name {
	char text[BORESCOPE_CGROUP_NAME_MAX];
};

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 1 << 23);
} ring SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_TASK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct slot);
} slots SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, BORESCOPE_MAX_TARGETS);
	__type(key, u64); /* cgroup id in the key hierarchy */
	__type(value, struct borescope_target);
} targets SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, BORESCOPE_MAX_PODS);
	__type(key, struct borescope_pod_key);
	__type(value, u64); /* jobs */
} pods SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, BORESCOPE_MAX_RATES); /* times the number of CPUs: set before loading */
	__type(key, u32);
	__type(value, struct borescope_clock);
} clocks SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct borescope_stats);
} stats SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, BORESCOPE_MAX_JOBS * LOSS_MAX);
	__type(key, u32);
	__type(value, struct borescope_lost);
} lost SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct scratch);
} scratches SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1); /* the number of CPUs: set before loading; not made at all unless raw_every is set */
	__type(key, u32);
	__type(value, struct raw_test);
} raw_tests SEC(".maps");

/* The names of these types reach the skeleton: __u64, not u64. */

/* Set before loading. */
const volatile __u32 pid_namespace = 0; /* inode number of the sampler's own */
const volatile __u32 raw_every = 0; /* test mode: so many-th sample carries up to 64 KiB of its stack besides its frames */

/* Set by user space at any time. */
struct borescope_job_state jobs[BORESCOPE_MAX_JOBS];
__u64 rate_jobs[BORESCOPE_MAX_RATES]; /* jobs served by each rate */
__u64 cgroup_jobs; /* jobs that select pods */
__u64 group_jobs;  /* ... thread groups */
__u64 all_jobs;    /* ... every process */
__u32 hierarchy;   /* enum borescope_hierarchy of the ids in `targets` */
__u32 epoch;       /* of the session: counts up each time the programs are attached */
/* Arguments of the iterators. */
__u64 mark_jobs;
__u32 mark_tgid;
__u64 clear_jobs;
__u32 list_hierarchy;
/* Argument and answer of name_kernel. */
__u64 kernel_address;
char kernel_name[BORESCOPE_KERNEL_NAME_MAX];

/* Results. */
__u64 job_used_ns[BORESCOPE_MAX_JOBS];
__u64 next_space;
__u64 slots_changed;    /* by mark_jobs, clear_jobs */
__u64 events_lost;      /* fork, exec, exit, cgroup records for which the ring had no room */
__u64 targets_full;     /* cgroups that found no room in `targets` */
__u64 raw_second;       /* of CLOCK_MONOTONIC, for which raw_bytes counts */
__u64 raw_bytes;
__u64 threads_moved;    /* wanted processes with several threads that changed cgroup: their run time is to be settled */

/* ---- own cost ---- */

static __always_inline u64 cost_begin(u32 program)
{
	u32 zero = 0;
	struct borescope_stats *s = bpf_map_lookup_elem(&stats, &zero);

	if (!s)
		return 0;
	s->runs[program]++;
	return bpf_get_prandom_u32() % BORESCOPE_OWN_COST_ONE_IN ? 0 : bpf_ktime_get_ns();
}

static __always_inline void cost_end(u32 program, u64 start)
{
	u32 zero = 0;
	struct borescope_stats *s;

	if (!start)
		return;
	s = bpf_map_lookup_elem(&stats, &zero);
	if (s)
		s->timed_ns[program] += bpf_ktime_get_ns() - start;
}

/* ---- loops over job bits ---- */

/* Those of the jobs whose window holds this moment. */
__noinline u64 jobs_in_window(u64 mask, u64 boot_ns)
{
	u64 in = 0;

	for (u32 i = 0; i < BORESCOPE_MAX_JOBS; i++) {
		if (!(mask >> i))
			break;
		if (!(mask >> i & 1))
			continue;
		if (boot_ns >= jobs[i].start_boot_ns && boot_ns < jobs[i].deadline_boot_ns)
			in |= 1ull << i;
	}
	return in;
}

/* Those of the jobs that take this tick: all, but for jobs whose rate is thinned out of a higher one. */
__noinline u64 jobs_kept(u64 mask)
{
	u64 kept = 0;

	for (u32 i = 0; i < BORESCOPE_MAX_JOBS; i++) {
		if (!(mask >> i))
			break;
		if (!(mask >> i & 1))
			continue;
		if (jobs[i].keep >= KEEP_ALL || bpf_get_prandom_u32() < jobs[i].keep)
			kept |= 1ull << i;
	}
	return kept;
}

__noinline int charge_used(u64 mask, u64 ns)
{
	for (u32 i = 0; i < BORESCOPE_MAX_JOBS; i++) {
		if (!(mask >> i))
			break;
		if (mask >> i & 1)
			__sync_fetch_and_add(&job_used_ns[i], ns);
	}
	return 0;
}

/* ns: of one tick of a clock of that frequency. */
__noinline int charge_lost(u64 mask, u32 reason, u64 ns, u64 rate_hz)
{
	for (u32 i = 0; i < BORESCOPE_MAX_JOBS; i++) {
		u32 row = i * LOSS_MAX + reason;
		struct borescope_lost *l;

		if (!(mask >> i))
			break;
		if (!(mask >> i & 1))
			continue;
		l = bpf_map_lookup_elem(&lost, &row);
		if (l) {
			l->count++;
			l->ns += jobs[i].frequency_hz && jobs[i].frequency_hz < rate_hz ? ns * rate_hz / jobs[i].frequency_hz : ns;
		}
	}
	return 0;
}

/* ---- tasks ---- */

static __always_inline struct cgroup *cgroup_in(struct task_struct *task, u32 h)
{
	struct css_set *set = task->cgroups;

	if (h == HIERARCHY_MEMORY && bpf_core_enum_value_exists(enum cgroup_subsys_id, memory_cgrp_id))
		return set->subsys[bpf_core_enum_value(enum cgroup_subsys_id, memory_cgrp_id)]->cgroup;
	if (h == HIERARCHY_PIDS && bpf_core_enum_value_exists(enum cgroup_subsys_id, pids_cgrp_id))
		return set->subsys[bpf_core_enum_value(enum cgroup_subsys_id, pids_cgrp_id)]->cgroup;
	if (h == HIERARCHY_CPU && bpf_core_enum_value_exists(enum cgroup_subsys_id, cpu_cgrp_id))
		return set->subsys[bpf_core_enum_value(enum cgroup_subsys_id, cpu_cgrp_id)]->cgroup;
	return set->dfl_cgrp;
}

/* The number of a pid in the sampler's own namespace; 0: it is not in it. */
static __always_inline u32 pid_in_our_namespace(struct pid *pid)
{
	u32 level;

	if (!pid)
		return 0;
	level = BPF_CORE_READ(pid, level);
	for (u32 i = 0; i < PID_NAMESPACE_LEVELS; i++) {
		struct upid *at = (void *)&pid->numbers[0] + i * bpf_core_type_size(struct upid);

		if (i > level)
			break;
		if (BPF_CORE_READ(at, ns, ns.inum) == pid_namespace)
			return BPF_CORE_READ(at, nr);
	}
	return 0;
}

/* Slots made for processes found running carry the mm's address in the id: threads and vfork children, met in any order, agree. */
static __always_inline u64 space_of_mm(u64 mm)
{
	return mm ? (u64)epoch << 48 | (mm & 0xfffffffffff8ull) : 0;
}

static __always_inline u64 fresh_space(void)
{
	return (u64)epoch << 48 | __sync_fetch_and_add(&next_space, 1) << 3 | 1;
}

static __always_inline void slot_set_pids(struct slot *slot, struct task_struct *task)
{
	slot->tid = pid_in_our_namespace(task->thread_pid);
	slot->tgid = pid_in_our_namespace(BPF_CORE_READ(task, group_leader, thread_pid));
}

static __always_inline struct slot *slot_of(struct task_struct *task)
{
	struct slot *slot = bpf_task_storage_get(&slots, task, NULL, 0);

	return slot && slot->epoch == epoch ? slot : NULL;
}

/* Never from a tick: this allocates. */
static __always_inline struct slot *slot_make(struct task_struct *task)
{
	struct slot *slot = bpf_task_storage_get(&slots, task, NULL, BPF_LOCAL_STORAGE_GET_F_CREATE);

	if (!slot || slot->epoch == epoch)
		return slot;
	slot->mm = (u64)BPF_CORE_READ(task, mm);
	slot->space = space_of_mm(slot->mm);
	slot->wanted = 0;
	slot->jobs = 0;
	slot->raws = 0;
	slot->execing = 0;
	slot->base_ns = task->se.sum_exec_runtime;
	slot_set_pids(slot, task);
	barrier();
	slot->epoch = epoch;
	return slot;
}

/* All jobs that select this task, whatever their window; *container gets its container's cgroup, or 0. */
static __always_inline u64 jobs_selecting(struct task_struct *task, struct slot *slot, u64 *container)
{
	u64 selecting = 0;

	*container = 0;
	if (cgroup_jobs) {
		struct borescope_target *target;
		u64 id = cgroup_in(task, hierarchy)->kn->id;

		target = bpf_map_lookup_elem(&targets, &id);
		if (target) {
			selecting = target->jobs;
			*container = target->container ? target->container : id;
		}
	}
	if (slot) {
		selecting |= slot->wanted;
		if (slot->tgid)
			selecting |= all_jobs;
	}
	return selecting;
}

/* Charges the run time since the last time to the jobs of that time, and notes to which jobs the time from now on belongs. */
static __always_inline void settle(struct task_struct *task, struct slot *slot, u64 jobs_now)
{
	u64 now = task->se.sum_exec_runtime;
	u64 base = slot->base_ns;

	if (now > base && __sync_val_compare_and_swap(&slot->base_ns, base, now) == base && slot->jobs)
		charge_used(slot->jobs, now - base);
	slot->jobs = jobs_now;
}

static __always_inline void head_set(struct borescope_record *head, u16 type, u32 size)
{
	head->version = BORESCOPE_ABI_VERSION;
	head->type = type;
	head->size = size;
	head->time_ns = bpf_ktime_get_ns();
}

static __always_inline void emit(void *record, u32 size, u64 flags)
{
	if (bpf_ringbuf_output(&ring, record, size, flags))
		__sync_fetch_and_add(&events_lost, 1);
}

/* ---- the tick ---- */

/*
 * The user stack into words[first...]. The number of frames stays in memory on the way: known to the verifier as one of 512 values, what comes
 * after the loop would be looked at as often.
 */
static __always_inline void walk_user(struct scratch *s, struct user_walk *w, u32 first, u64 start_ns)
{
	for (u32 i = 0; i < BORESCOPE_MAX_USER_FRAMES; i++) {
		enum user_progress progress = user_step();
		u32 at = first + i;

		if (progress == USER_NO_FRAME || at >= MAX_FRAMES)
			break;
		s->words[at] = i ? w->frame : w->regs.pc;
		s->sample.user_frames = i + 1;
		if (progress == USER_LAST_FRAME)
			break;
		if (i % 8 == 7 && bpf_ktime_get_ns() - start_ns > TICK_LIMIT_NS) {
			unwind_stop(&w->u, LOSS_TIME_STOP);
			break;
		}
	}
	s->sample.end_reason = w->u.done ? w->u.end : LOSS_TOO_DEEP;
}

/* The address space has been exchanged, the registers have not: what was saved at the entry of execve is no state of this program. */
static __always_inline int in_exec(struct task_struct *task, struct slot *slot, int user_mode)
{
	if (!slot->execing)
		return 0;
	if (!user_mode && bpf_core_field_exists(task->in_execve) && BPF_CORE_READ_BITFIELD(task, in_execve))
		return 1;
	slot->execing = 0;
	return 0;
}

/* Returns 1 if the thread's user registers are in w->regs and its user stack was walked. */
static __always_inline int fill_sample(struct bpf_perf_event_data *ctx, struct task_struct *task, struct slot *slot, struct scratch *s,
				       struct user_walk *w, u64 start_ns)
{
	struct borescope_sample *sample = &s->sample;
	int user_mode = tick_in_user_mode(ctx), native;
	u64 mm = (u64)task->mm;
	u32 kernel_frames = 0;
	long bytes;

	sample->flags = 0;
	sample->end_reason = LOSS_NONE;
	sample->user_frames = 0;
	if (!user_mode) {
		sample->flags = SAMPLE_IN_KERNEL;
		bytes = bpf_get_stack(ctx, s->words, BORESCOPE_MAX_KERNEL_FRAMES * sizeof(u64), 0);
		if (bytes > 0)
			kernel_frames = (u32)bytes / sizeof(u64);
	}
	sample->kernel_frames = kernel_frames;
	if (task->flags & (PF_KTHREAD | PF_IO_WORKER | PF_USER_WORKER))
		return 0; /* it has no user stack */
	if (!mm || (slot && (slot->mm != mm || in_exec(task, slot, user_mode))))
		return 0; /* nor has one between two address spaces (exec) or past the last: the saved registers belong to memory that is gone */
	sample->end_reason = LOSS_NO_USER_REGS;
	w->in_syscall = 0;
	if (user_mode) {
		native = regs_of_tick(ctx, &w->regs);
	} else {
		arch_regs *saved = (void *)w->window;

		if (bpf_probe_read_kernel(saved, sizeof(*saved), (void *)bpf_task_pt_regs(task)))
			return 0;
		native = regs_of_saved(saved, &w->regs);
		w->in_syscall = regs_of_syscall(saved);
	}
	if (!native) {
		s->words[kernel_frames] = w->regs.pc;
		sample->user_frames = 1;
		sample->end_reason = LOSS_PROGRAM_32_BIT;
		return 0;
	}
	user_walk_begin(w, task, slot ? slot->space : 0, start_ns);
	walk_user(s, w, kernel_frames, start_ns);
	if (w->after_syscall)
		sample->flags |= SAMPLE_AFTER_SYSCALL;
	return 1;
}

/* Room for another raw sample of this process, and of the node in this second? */
static __always_inline int raw_allowed(struct task_struct *task, u64 now_ns)
{
	u64 second = now_ns / 1000000000;
	struct slot *slot = slot_of(task->group_leader);

	if (!slot || slot->raws >= RAW_PER_PROCESS)
		return 0;
	if (raw_second != second) {
		raw_second = second;
		raw_bytes = 0;
	}
	if (raw_bytes + BORESCOPE_RAW_BYTES > RAW_PER_SECOND)
		return 0;
	__sync_fetch_and_add(&raw_bytes, BORESCOPE_RAW_BYTES);
	__sync_fetch_and_add(&slot->raws, 1);
	return 1;
}

/* How much of the stack at `start` may be read at once: up to its mapping's end, `most` bytes at most. */
__noinline u32 stack_bytes(u64 start, u32 most)
{
	struct user_walk *w = user_walk();
	struct vma vma = {};

	if (!w || !vma_find(w->memory.mm, start, &vma))
		return 0;
	return vma.end - start < most ? vma.end - start : most;
}

/* A struct borescope_raw and the stack to `to`, where there is room for both; returns words, 0 if the stack could not be read. */
static __always_inline u32 put_raw(struct user_walk *w, u64 *to, u32 most)
{
	struct borescope_raw *raw = (void *)to;
	u64 start = (w->regs.r[UNWIND_SP] - UNWIND_RED_ZONE) & ~7ull;
	u32 bytes = stack_bytes(start, most) & ~7u;

	if (!bytes)
		return 0;
	barrier_var(bytes); /* else clang makes one comparison of a difference of both, from which 6.1 learns no bound */
	if (bytes > most)
		return 0;
	if (bpf_probe_read_user(raw + 1, bytes, (void *)start)) {
		/* The kernel leaves up to two pages out between a program's arguments and its first frame: then page by page. */
		u32 all = bytes, piece;

		bytes = 0;
		for (u32 i = 0; i <= BORESCOPE_RAW_TEST_BYTES / 4096; i++) {
			piece = 4096 - ((start + bytes) & 4095);
			if (bytes + piece > all)
				break;
			barrier_var(bytes); /* else what is compared is a copy, and 6.1 learns nothing of what is added */
			if (bytes > most - 4096)
				break;
			if (bpf_probe_read_user((u8 *)(raw + 1) + bytes, piece, (void *)(start + bytes)))
				break;
			bytes += piece;
		}
		if (!bytes)
			return 0;
	}
	__builtin_memcpy(&raw->regs, &w->regs, sizeof(raw->regs));
	raw->start = start;
	raw->bytes = bytes;
	return (sizeof(*raw) + bytes) / 8;
}

/* What follows the frames while tables are missing; returns the words in use. */
static __always_inline u32 put_tail(struct scratch *s, struct user_walk *w, struct task_struct *task, u32 at)
{
	if (at > MAX_FRAMES || !w->has_missing)
		return at;
	__builtin_memcpy(&s->words[at], &w->missing, sizeof(w->missing));
	at += sizeof(w->missing) / 8;
	s->sample.flags |= SAMPLE_MISSING_FILE;
	if (s->sample.end_reason == LOSS_TABLES_NOT_READY && raw_allowed(task, s->sample.head.time_ns)) {
		u32 words = put_raw(w, &s->words[at], BORESCOPE_RAW_BYTES);

		if (words)
			s->sample.flags |= SAMPLE_RAW;
		at += words;
	}
	return at;
}

/* Test mode: the sample again, with its raw stack. Returns 0 if it was not written. */
static __always_inline int emit_raw_test(struct scratch *s, struct user_walk *w, u32 cpu)
{
	u32 at = (u32)s->sample.kernel_frames + s->sample.user_frames, words;
	struct raw_test *test = bpf_map_lookup_elem(&raw_tests, &cpu);

	if (!test || at > MAX_FRAMES || s->sample.flags & (SAMPLE_RAW | SAMPLE_MISSING_FILE) ||
	    bpf_probe_read_kernel(&test->sample, sizeof(test->sample) + at * sizeof(u64), &s->sample))
		return 0;
	words = put_raw(w, &test->words[at], BORESCOPE_RAW_TEST_BYTES);
	at += words;
	if (!words || at > sizeof(test->words) / 8)
		return 0;
	test->sample.flags |= SAMPLE_RAW;
	test->sample.head.size = sizeof(test->sample) + at * sizeof(u64);
	return !bpf_ringbuf_output(&ring, &test->sample, sizeof(test->sample) + at * sizeof(u64), BPF_RB_NO_WAKEUP);
}

static __always_inline void take_sample(struct bpf_perf_event_data *ctx, u32 rate, u32 rate_hz, u32 cpu, u64 extra_ns, u64 start_ns,
					struct borescope_stats *st)
{
	struct task_struct *task = bpf_get_current_task_btf();
	struct bpf_perf_event_data_kern *kern = (void *)ctx;
	u64 candidates = rate_jobs[rate];
	u64 due, weight, container;
	struct slot *slot = NULL;
	struct user_walk *w = user_walk();
	struct scratch *s;
	u32 zero = 0, words;
	int walked;

	if (!candidates || !task->pid)
		return;
	if (candidates & (group_jobs | all_jobs))
		slot = slot_of(task);
	due = jobs_selecting(task, slot, &container) & candidates;
	if (!due)
		return;
	due = jobs_in_window(due, bpf_ktime_get_boot_ns());
	if (!due)
		return;
	due = jobs_kept(due);
	if (!due)
		return;
	if (!slot)
		slot = slot_of(task);

	/* Not ctx->sample_period: that keeps the value of the event's opening. */
	weight = BPF_CORE_READ(kern, event, hw.sample_period);
	if (!weight) {
		charge_lost(due, LOSS_PERIOD_UNREADABLE, 0, rate_hz);
		return;
	}
	weight += extra_ns;

	s = bpf_map_lookup_elem(&scratches, &zero);
	if (!s || !w)
		return;
	if (__sync_val_compare_and_swap(&s->busy, 0, 1)) {
		charge_lost(due, LOSS_SCRATCH_BUSY, weight, rate_hz);
		return;
	}
	st->walks++;
	s->sample.head.version = BORESCOPE_ABI_VERSION;
	s->sample.head.type = RECORD_SAMPLE;
	s->sample.head.time_ns = start_ns;
	s->sample.cgroup_id = container;
	s->sample.weight_ns = weight;
	s->sample.job_mask = due;
	s->sample.rate = rate;
	s->sample.rate_hz = rate_hz;
	s->sample.cpu = cpu;
	if (slot) {
		s->sample.tgid = slot->tgid;
		s->sample.tid = slot->tid;
		s->sample.space = slot->space;
	} else {
		s->sample.tid = pid_in_our_namespace(task->thread_pid);
		s->sample.tgid = pid_in_our_namespace(BPF_CORE_READ(task, group_leader, thread_pid));
		s->sample.space = 0;
	}
	bpf_probe_read_kernel(s->sample.comm, sizeof(s->sample.comm), task->comm);
	walked = fill_sample(ctx, task, slot, s, w, start_ns);
	if (raw_every && walked && st->walks % raw_every == 0 && emit_raw_test(s, w, cpu))
		goto out;

	words = (u32)s->sample.kernel_frames + s->sample.user_frames;
	if (walked)
		words = put_tail(s, w, task, words);
	if (words > sizeof(s->words) / 8)
		words = sizeof(s->words) / 8;
	s->sample.head.size = sizeof(s->sample) + words * sizeof(u64);
	/* A raw sample asks for tables: that they come soon is worth a wake-up. */
	if (bpf_ringbuf_output(&ring, &s->sample, sizeof(s->sample) + words * sizeof(u64),
			       s->sample.flags & SAMPLE_RAW ? BPF_RB_FORCE_WAKEUP : BPF_RB_NO_WAKEUP))
		charge_lost(due, LOSS_RING_FULL, weight, rate_hz);
out:
	__sync_val_compare_and_swap(&s->busy, 1, 0);
}

SEC("perf_event")
int tick(struct bpf_perf_event_data *ctx)
{
	u64 start_ns = bpf_ktime_get_ns();
	u64 cookie = bpf_get_attach_cookie(ctx);
	u32 rate = BORESCOPE_COOKIE_RATE(cookie) % BORESCOPE_MAX_RATES;
	u32 cpu = bpf_get_smp_processor_id();
	u32 at = cpu * BORESCOPE_MAX_RATES + rate, zero = 0;
	struct borescope_clock *clock = bpf_map_lookup_elem(&clocks, &at);
	struct borescope_stats *st = bpf_map_lookup_elem(&stats, &zero);

	if (!clock || !st)
		return 0;
	clock->last_tick_ns = start_ns;
	st->ticks++;
	st->runs[PROGRAM_TICK]++;
	take_sample(ctx, rate, BORESCOPE_COOKIE_HZ(cookie), cpu, clock->extra_ns, start_ns, st);
	if (bpf_get_prandom_u32() % BORESCOPE_OWN_COST_ONE_IN == 0)
		st->timed_ns[PROGRAM_TICK] += bpf_ktime_get_ns() - start_ns;
	return 0;
}

/* ---- processes ---- */

SEC("tp_btf/task_newtask")
int BPF_PROG(on_newtask, struct task_struct *child, u64 clone_flags)
{
	u64 cost = cost_begin(PROGRAM_NEWTASK);
	struct task_struct *parent = bpf_get_current_task_btf();
	struct slot *from = slot_of(parent);
	struct slot *to = slot_make(child);
	u64 selecting, container;

	if (!to)
		goto out;
	to->space = from ? from->space : space_of_mm((u64)BPF_CORE_READ(parent, mm));
	to->wanted = from ? from->wanted : 0;
	selecting = jobs_selecting(child, to, &container);
	to->jobs = jobs_in_window(selecting, bpf_ktime_get_boot_ns());
	if (selecting && !(clone_flags & CLONE_THREAD)) {
		struct borescope_fork record = {};

		head_set(&record.head, RECORD_FORK, sizeof(record));
		record.parent_tgid = from ? from->tgid : 0;
		record.parent_tid = from ? from->tid : 0;
		record.tgid = to->tgid;
		record.tid = to->tid;
		record.space = to->space;
		record.cgroup_id = container;
		emit(&record, sizeof(record), BPF_RB_NO_WAKEUP);
	}
out:
	cost_end(PROGRAM_NEWTASK, cost);
	return 0;
}

/*
 * exec: the new name is set right after the address space was exchanged and before anything is mapped into it; so this comes
 * before the mappings, as sched_process_exec would not.
 */
SEC("tp_btf/task_rename")
int BPF_PROG(on_rename, struct task_struct *task, const char *comm)
{
	u64 cost = cost_begin(PROGRAM_RENAME);
	struct slot *slot = slot_make(task);
	u64 mm = (u64)BPF_CORE_READ(task, mm);
	u64 selecting, container, old_space;

	if (!slot || slot->mm == mm)
		goto out; /* only a name */
	old_space = slot->space;
	slot->space = fresh_space();
	slot->mm = mm;
	slot->execing = 1;
	slot->raws = 0;
	slot_set_pids(slot, task); /* a thread that is not the leader takes the leader's number */
	selecting = jobs_selecting(task, slot, &container);
	settle(task, slot, jobs_in_window(selecting, bpf_ktime_get_boot_ns()));
	if (selecting) {
		struct borescope_exec record = {};

		head_set(&record.head, RECORD_EXEC, sizeof(record));
		record.tgid = slot->tgid;
		record.tid = slot->tid;
		record.space = slot->space;
		record.old_space = old_space;
		record.cgroup_id = container;
		bpf_probe_read_kernel_str(record.comm, sizeof(record.comm), comm);
		emit(&record, sizeof(record), BPF_RB_NO_WAKEUP);
	}
out:
	cost_end(PROGRAM_RENAME, cost);
	return 0;
}

SEC("tp_btf/sched_process_exit")
int BPF_PROG(on_exit, struct task_struct *task)
{
	u64 cost = cost_begin(PROGRAM_EXIT);
	struct slot *slot = slot_of(task);
	u64 selecting, container;

	if (!slot)
		goto out;
	selecting = jobs_selecting(task, slot, &container);
	settle(task, slot, jobs_in_window(selecting, bpf_ktime_get_boot_ns()));
	if (selecting) {
		struct borescope_exit record = {};

		head_set(&record.head, RECORD_EXIT, sizeof(record));
		record.tgid = slot->tgid;
		record.tid = slot->tid;
		record.space = slot->space;
		record.cgroup_id = container;
		record.group_dead = BPF_CORE_READ(task, signal, live.counter) == 0;
		emit(&record, sizeof(record), BPF_RB_NO_WAKEUP);
	}
out:
	cost_end(PROGRAM_EXIT, cost);
	return 0;
}

/* The exit itself takes time (tearing down the address space); here the sum is final. */
SEC("tp_btf/sched_process_free")
int BPF_PROG(on_free, struct task_struct *task)
{
	u64 cost = cost_begin(PROGRAM_FREE);
	struct slot *slot = slot_of(task);

	if (slot)
		settle(task, slot, 0);
	cost_end(PROGRAM_FREE, cost);
	return 0;
}

/* ---- cgroups ---- */

struct name_scan {
	struct borescope_pod_key key;
	u32 last; /* the last three characters */
	u32 collecting;
	u32 digits;
	u32 found;
};

/* One character; returns 1 when the name is at its end or the pod's uid was found. A global function: see user_stack.h. */
__noinline int name_step(struct name_scan *scan, u32 c)
{
	u32 value = 16;

	if (!scan)
		return 1;
	if (c >= '0' && c <= '9')
		value = c - '0';
	else if (c >= 'a' && c <= 'f')
		value = c - 'a' + 10;
	if (scan->collecting) {
		if (value < 16) {
			scan->key.high = scan->key.high << 4 | scan->key.low >> 60;
			scan->key.low = scan->key.low << 4 | value;
			scan->digits++;
		} else if (c != '-' && c != '_') {
			scan->found = scan->digits == 32;
			scan->collecting = 0;
		}
	}
	scan->last = (scan->last << 8 | c) & 0xffffff;
	if (scan->last == ('p' << 16 | 'o' << 8 | 'd')) {
		scan->collecting = 1;
		scan->digits = 0;
	}
	return scan->found || !c;
}

/*
 * "pod" and 32 hexadecimal digits, with or without "-" and "_" between them: pod6f1c…-…, kubepods-burstable-pod6f1c…_….slice.
 * Returns 1 and the digits.
 */
__noinline int pod_in_name(const struct cgroup_name *name, struct borescope_pod_key *key)
{
	struct name_scan scan = {};

	if (!name || !key)
		return 0;
	for (u32 i = 0; i < BORESCOPE_CGROUP_NAME_MAX; i++) {
		if (name_step(&scan, (u8)name->text[i]))
			break;
	}
	*key = scan.key;
	return scan.found;
}

/* The jobs that want the pod whose cgroup this is, by its name; fills key. */
static __always_inline u64 jobs_of_pod(struct cgroup *cgrp, struct cgroup_name *name, struct borescope_pod_key *key)
{
	u64 *wanted;

	if (bpf_probe_read_kernel_str(name, sizeof(*name), BPF_CORE_READ(cgrp, kn, name)) < 0 || !pod_in_name(name, key))
		return 0;
	wanted = bpf_map_lookup_elem(&pods, key);
	return wanted ? *wanted : 0;
}

/* Makes this cgroup a target if it belongs to a wanted pod, and tells user space at once. */
static __always_inline void cgroup_seen(struct cgroup *cgrp)
{
	u64 id = cgrp->kn->id, parent_id;
	struct borescope_target target = {}, *up;
	struct borescope_cgroup record = {};
	struct cgroup_name *name = (struct cgroup_name *)record.name;
	struct cgroup_subsys_state *above;
	struct cgroup *parent;

	if (bpf_map_lookup_elem(&targets, &id))
		return;
	above = cgrp->self.parent;
	if (!above)
		return;
	parent = above->cgroup;
	parent_id = parent->kn->id;
	up = bpf_map_lookup_elem(&targets, &parent_id);
	if (up) {
		target = *up;
		if (!target.container)
			target.container = id;
	} else if (!(target.jobs = jobs_of_pod(cgrp, name, &target.pod))) {
		target.jobs = jobs_of_pod(parent, name, &target.pod);
		target.container = id;
	}
	if (!target.jobs && !up)
		return;
	switch (bpf_map_update_elem(&targets, &id, &target, BPF_NOEXIST)) {
	case 0:
		break;
	case -EEXIST:
		return;
	default:
		__sync_fetch_and_add(&targets_full, 1);
		return;
	}
	head_set(&record.head, RECORD_CGROUP_MKDIR, sizeof(record));
	record.cgroup_id = id;
	record.parent_id = parent_id;
	record.container_id = target.container;
	record.pod_high = target.pod.high;
	record.pod_low = target.pod.low;
	bpf_probe_read_kernel_str(record.name, sizeof(record.name), BPF_CORE_READ(cgrp, kn, name));
	emit(&record, sizeof(record), BPF_RB_FORCE_WAKEUP);
}

/* Cgroup ids are unique within one hierarchy only. */
static __always_inline int in_key_hierarchy(struct cgroup *cgrp)
{
	return cgroup_jobs && cgrp->root == cgroup_in(bpf_get_current_task_btf(), hierarchy)->root;
}

SEC("tp_btf/cgroup_mkdir")
int BPF_PROG(on_cgroup_mkdir, struct cgroup *cgrp)
{
	u64 cost = cost_begin(PROGRAM_CGROUP);

	if (in_key_hierarchy(cgrp))
		cgroup_seen(cgrp);
	cost_end(PROGRAM_CGROUP, cost);
	return 0;
}

SEC("tp_btf/cgroup_rmdir")
int BPF_PROG(on_cgroup_rmdir, struct cgroup *cgrp)
{
	u64 cost = cost_begin(PROGRAM_CGROUP);

	if (in_key_hierarchy(cgrp)) {
		u64 id = cgrp->kn->id;
		struct borescope_target *target = bpf_map_lookup_elem(&targets, &id);

		if (target) {
			struct borescope_cgroup record = {};

			head_set(&record.head, RECORD_CGROUP_RMDIR, sizeof(record));
			record.cgroup_id = id;
			record.container_id = target->container;
			record.pod_high = target->pod.high;
			record.pod_low = target->pod.low;
			bpf_probe_read_kernel_str(record.name, sizeof(record.name), BPF_CORE_READ(cgrp, kn, name));
			bpf_map_delete_elem(&targets, &id);
			emit(&record, sizeof(record), BPF_RB_NO_WAKEUP);
		}
	}
	cost_end(PROGRAM_CGROUP, cost);
	return 0;
}

/* A process moved: its run time up to now belongs to where it was. A cgroup made before we were attached shows here, too. */
SEC("tp_btf/cgroup_attach_task")
int BPF_PROG(on_cgroup_attach, struct cgroup *cgrp, const char *path, struct task_struct *task, _Bool threadgroup)
{
	u64 cost = cost_begin(PROGRAM_CGROUP);

	if (in_key_hierarchy(cgrp)) {
		struct slot *slot = slot_make(task);
		u64 container, jobs_now;

		cgroup_seen(cgrp);
		if (slot) {
			jobs_now = jobs_in_window(jobs_selecting(task, slot, &container), bpf_ktime_get_boot_ns());
			if (threadgroup && (jobs_now | slot->jobs) && BPF_CORE_READ(task, signal, live.counter) > 1)
				__sync_fetch_and_add(&threads_moved, 1);
			settle(task, slot, jobs_now);
		}
	}
	cost_end(PROGRAM_CGROUP, cost);
	return 0;
}

/* ---- iterators: what was there before ---- */

/* Every task: gives it a slot, applies mark_jobs and clear_jobs, settles its run time; tells of each process that is wanted. */
SEC("iter/task")
int visit_tasks(struct bpf_iter__task *ctx)
{
	struct task_struct *task = ctx->task;
	struct borescope_task_info info = {};
	struct slot *slot;
	u64 selecting;

	if (!task)
		return 0;
	slot = slot_make(task);
	if (!slot)
		return 0;
	if (mark_jobs && slot->tgid == mark_tgid && (slot->wanted & mark_jobs) != mark_jobs) {
		slot->wanted |= mark_jobs;
		slots_changed++;
	}
	if (slot->wanted & clear_jobs) {
		slot->wanted &= ~clear_jobs;
		slots_changed++;
	}
	selecting = jobs_selecting(task, slot, &info.cgroup_id);
	settle(task, slot, jobs_in_window(selecting, bpf_ktime_get_boot_ns()));
	if (selecting && slot->tgid && slot->tgid == slot->tid) {
		info.tgid = slot->tgid;
		info.tid = slot->tid;
		info.space = slot->space;
		bpf_probe_read_kernel(info.comm, sizeof(info.comm), task->comm);
		bpf_seq_write(ctx->meta->seq, &info, sizeof(info));
	}
	return 0;
}

/* The cgroups of every process in list_hierarchy, each with its ancestors. */
SEC("iter/task")
int visit_cgroups(struct bpf_iter__task *ctx)
{
	struct task_struct *task = ctx->task;
	struct borescope_cgroup_info info;
	struct cgroup *cgrp;

	if (!task || task->pid != task->tgid)
		return 0;
	cgrp = cgroup_in(task, list_hierarchy);
	for (u32 i = 0; i < BORESCOPE_CGROUP_LEVELS; i++) {
		struct cgroup_subsys_state *above = cgrp->self.parent;

		__builtin_memset(&info, 0, sizeof(info));
		info.id = cgrp->kn->id;
		info.parent_id = above ? above->cgroup->kn->id : 0;
		bpf_probe_read_kernel_str(info.name, sizeof(info.name), BPF_CORE_READ(cgrp, kn, name));
		bpf_seq_write(ctx->meta->seq, &info, sizeof(info));
		if (!above)
			break;
		cgrp = above->cgroup;
	}
	return 0;
}

/*
 * The kernel's own name for an address of its text, "schedule" or "nft_do_chain [nf_tables]": one look-up, where reading
 * /proc/kallsyms makes 100 000 lines. Run by user space for each kernel address that it sees for the first time.
 */
SEC("syscall")
int name_kernel(void *ctx)
{
	u64 arguments[] = {kernel_address};

	return bpf_snprintf(kernel_name, sizeof(kernel_name), "%ps", arguments, sizeof(arguments)) < 0;
}

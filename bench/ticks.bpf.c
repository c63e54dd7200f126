// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * How long the kernel is in the handler of a cpu-clock event, whoever opened it: perf, our sampler, or an empty program. The
 * clock pair stands around the whole handler, so that what is compared is measured alike.
 */
#include <linux/bpf.h>
#include <linux/bpf_perf_event.h>
#include <linux/types.h>

#include <bpf/bpf_core_read.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>

char LICENSE[] SEC("license") = "Dual BSD/GPL";

/* Up to 150 us, the hard stop of our own handler. A per-CPU value is at most 32 KiB. */
#define BIN_NS 100
#define BINS 1500

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)
struct task_struct {
	int tgid;
};
struct hrtimer {
	void *function;
};
struct hw_perf_event {
	struct hrtimer hrtimer;
};
struct perf_event {
	struct hw_perf_event hw;
	struct perf_event *parent;
	struct task_struct *owner;
};
#pragma clang attribute pop

struct cpu_times {
	__u64 entered_ns;
	__u64 sum_ns[2];
	__u64 count[2];
	__u64 max_ns[2];
	__u64 bins[2][BINS];
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct cpu_times);
} times SEC(".maps");

const volatile int owner = 0;  /* thread group that opened the events */
const volatile int target = 0; /* thread group that is sampled: ticks that hit it are counted apart */
const volatile __u64 handler = 0; /* address of perf_swevent_hrtimer */

static __always_inline struct cpu_times *mine(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&times, &zero);
}

SEC("tp_btf/hrtimer_expire_entry")
int BPF_PROG(enter, struct hrtimer *timer)
{
	struct perf_event *event = (void *)timer - bpf_core_field_offset(struct perf_event, hw.hrtimer);
	struct perf_event *parent;
	struct cpu_times *t = mine();

	if (!t)
		return 0;
	t->entered_ns = 0;
	if ((__u64)BPF_CORE_READ(timer, function) != handler)
		return 0;
	parent = BPF_CORE_READ(event, parent);
	if (parent)
		event = parent; /* inherited: only the first has an owner */
	if (BPF_CORE_READ(event, owner, tgid) == owner)
		t->entered_ns = bpf_ktime_get_ns();
	return 0;
}

SEC("tp_btf/hrtimer_expire_exit")
int BPF_PROG(leave, struct hrtimer *timer)
{
	__u64 now = bpf_ktime_get_ns(), took, bin;
	struct cpu_times *t = mine();
	__u32 hit = (bpf_get_current_pid_tgid() >> 32) == target;

	if (!t || !t->entered_ns)
		return 0;
	took = now - t->entered_ns;
	t->entered_ns = 0;
	bin = took / BIN_NS;
	if (bin >= BINS)
		bin = BINS - 1;
	t->bins[hit & 1][bin]++;
	t->sum_ns[hit & 1] += took;
	t->count[hit & 1]++;
	if (took > t->max_ns[hit & 1])
		t->max_ns[hit & 1] = took;
	return 0;
}

SEC("perf_event")
int empty(struct bpf_perf_event_data *ctx)
{
	return 0;
}

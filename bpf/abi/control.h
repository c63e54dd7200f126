/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The maps and iterator records through which sampler/engine steers the programs. Both sides are built together: no version.
 */
#pragma once

#include "bpf/abi/loss.h"
#include "bpf/abi/record.h"

#define BORESCOPE_MAX_TARGETS 8192 /* cgroups armed at once: pods, containers and what they make below */
#define BORESCOPE_MAX_PODS 1024
#define BORESCOPE_CGROUP_LEVELS 12 /* how far up a cgroup's ancestors are told */
#define BORESCOPE_OWN_COST_ONE_IN 16 /* runs between two that are timed */
#define BORESCOPE_KERNEL_NAME_MAX 640 /* the kernel's longest symbol is 512, a module's name 64 */

/* In which hierarchy a container's cgroup is looked for. */
enum borescope_hierarchy {
	HIERARCHY_V2 = 0,
	HIERARCHY_MEMORY,
	HIERARCHY_PIDS,
	HIERARCHY_CPU,
	HIERARCHY_MAX,
};

enum borescope_program {
	PROGRAM_TICK = 0,
	PROGRAM_NEWTASK,
	PROGRAM_RENAME,
	PROGRAM_EXIT,
	PROGRAM_FREE,
	PROGRAM_CGROUP,
	PROGRAM_MAX,
};

/* The cookie of a clock's attachment: index of the rate, and its frequency above that. */
#define BORESCOPE_COOKIE(rate, hz) ((__u64)(hz) << 8 | (__u64)(rate))
#define BORESCOPE_COOKIE_RATE(cookie) ((cookie) & 0xff)
#define BORESCOPE_COOKIE_HZ(cookie) ((cookie) >> 8)

/* A job's window and share; user space writes, BPF reads. */
struct borescope_job_state {
	__u64 start_boot_ns;
	__u64 deadline_boot_ns;
	__u64 keep; /* of 2^32 ticks of its clock; 2^32: all of them */
	__u64 frequency_hz;
};

/* A pod's uid, or the config hash of a static pod: 32 hexadecimal digits. */
struct borescope_pod_key {
	__u64 high, low;
};

/* One wanted cgroup. */
struct borescope_target {
	__u64 jobs;
	__u64 container; /* cgroup id of the container that it is or lies in; 0: it is the pod's own */
	struct borescope_pod_key pod;
};

/* The clock of one rate on one CPU; mapped into user space. */
struct borescope_clock {
	__u64 last_tick_ns; /* BPF writes */
	__u64 extra_ns;     /* user space writes: what each tick stands for beyond its period (time thrown away by redraws) */
};

struct borescope_stats {
	__u64 ticks;
	__u64 walks;
	__u64 runs[PROGRAM_MAX];
	__u64 timed_ns[PROGRAM_MAX]; /* of the timed runs */
};

struct borescope_lost {
	__u64 count;
	__u64 ns;
};

/* What the task iterator tells of a wanted process, one a thread group leader. */
struct borescope_task_info {
	__u32 tgid, tid;
	__u64 space;
	__u64 cgroup_id;
	char comm[16];
};

/* What it tells of each cgroup that holds a task, and of that cgroup's ancestors. */
struct borescope_cgroup_info {
	__u64 id;
	__u64 parent_id; /* 0: root */
	char name[BORESCOPE_CGROUP_NAME_MAX];
};

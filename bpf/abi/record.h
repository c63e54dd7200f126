/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * What BPF writes into the ring buffer, read by sampler/engine only. Compiled by both sides: fixed-width types, explicit padding,
 * no pointers. All times are CLOCK_MONOTONIC nanoseconds; all pids are those of the sampler's own PID namespace (0 = not in it).
 * Records of different CPUs come in the order of their reservation; user space sorts by time within a drain.
 */
#pragma once

#include <linux/types.h>

#include "bpf/abi/unwind.h"

#define BORESCOPE_ABI_VERSION 1

#define BORESCOPE_MAX_RATES 4          /* distinct frequencies armed at once on a node */
#define BORESCOPE_MAX_JOBS 64          /* bits of a job mask */
#define BORESCOPE_MAX_KERNEL_FRAMES 127
#define BORESCOPE_MAX_USER_FRAMES 512

enum borescope_record_type {
	RECORD_SAMPLE = 1,
	RECORD_FORK,         /* a new process (not a thread) that shares its parent's address-space slot until exec */
	RECORD_EXEC,         /* the process got a new address space */
	RECORD_EXIT,         /* a thread ended */
	RECORD_CGROUP_MKDIR, /* a cgroup of a wanted pod was made, or got its first process */
	RECORD_CGROUP_RMDIR,
};

/* Head of every record. */
struct borescope_record {
	__u16 version;  /* BORESCOPE_ABI_VERSION */
	__u16 type;     /* enum borescope_record_type */
	__u32 size;     /* bytes, head included */
	__u64 time_ns;
};

enum borescope_frame_kind {
	FRAME_NATIVE = 0, /* user-space program counter */
	FRAME_KERNEL = 1, /* kernel program counter */
	/* later: interpreter frames, each with a cookie */
};

enum borescope_sample_flags {
	SAMPLE_IN_KERNEL = 1,    /* the interrupt hit kernel mode; user_pc is where the thread entered the kernel */
	SAMPLE_MISSING_FILE = 2, /* struct borescope_missing_file follows the frames */
	SAMPLE_RAW = 4,          /* then struct borescope_raw, and the bytes of the stack */
	SAMPLE_AFTER_SYSCALL = 8, /* the first user frame is in a system call: its pc stands behind the call's instruction, as behind a call */
};

/* Set in a user frame's word: the pc was interrupted by a signal handler; it is not a return address. Bit 63 of the first is not set. */
#define USER_FRAME_INTERRUPTED (1ull << 63)

/*
 * One sample, sized to its stack: after the struct come kernel_frames words (leaf first), then user_frames words (leaf first: the
 * interrupted pc, then return addresses), then what flags tell of.
 */
struct borescope_sample {
	struct borescope_record head;
	__u32 tgid;
	__u32 tid;
	__u64 space;      /* address-space slot */
	__u64 cgroup_id;  /* container's cgroup, in the key hierarchy; 0 for thread-group selection */
	__u64 weight_ns;  /* the true period of this tick */
	__u64 job_mask;   /* bits of the jobs that want it */
	__u16 kernel_frames;
	__u16 user_frames;
	__u16 end_reason; /* enum borescope_loss: why the user walk ended */
	__u8 rate;        /* index of the frequency */
	__u8 flags;       /* enum borescope_sample_flags */
	__u16 pad;
	__u16 rate_hz; /* of the clock; a job of a lower frequency takes it for its share of that clock's ticks */
	__u32 cpu;
	char comm[16];
};

/* The mapping of the first frame whose file is not in the map `files`. */
struct borescope_missing_file {
	struct unwind_file_key key;
	__u64 start, end; /* addresses in the process */
	__u64 offset;     /* of start, in the file */
};

#define BORESCOPE_RAW_BYTES (8u << 10)
#define BORESCOPE_RAW_TEST_BYTES (64u << 10)

/* What a thread was at the sample, for unwinding in user space; `bytes` bytes of its stack follow. */
struct borescope_raw {
	struct unwind_regs regs;
	__u64 start; /* address of the first byte: UNWIND_RED_ZONE below the stack pointer, rounded down to 8 */
	__u64 bytes; /* a multiple of 8 */
};

struct borescope_fork {
	struct borescope_record head;
	__u32 parent_tgid, parent_tid;
	__u32 tgid, tid;
	__u64 space;
	__u64 cgroup_id;
};

struct borescope_exec {
	struct borescope_record head;
	__u32 tgid, tid;
	__u64 space;     /* the new one */
	__u64 old_space;
	__u64 cgroup_id;
	char comm[16];
};

struct borescope_exit {
	struct borescope_record head;
	__u32 tgid, tid;
	__u64 space;
	__u64 cgroup_id;
	__u32 group_dead; /* 1: the last thread of the process */
	__u32 pad;
};

#define BORESCOPE_CGROUP_NAME_MAX 160

struct borescope_cgroup {
	struct borescope_record head;
	__u64 cgroup_id;
	__u64 parent_id;
	__u64 container_id; /* of the container that it is or lies in; 0: it is a pod's own */
	__u64 pod_high, pod_low; /* the pod's uid: 32 hexadecimal digits */
	char name[BORESCOPE_CGROUP_NAME_MAX];
};

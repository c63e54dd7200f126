/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The kernel's types as far as we read them: field names only. Offsets are relocated when the program is loaded (CO-RE), so
 * order, size and what stands between do not matter.
 */
#pragma once

#include <linux/bpf.h>
#include <linux/bpf_perf_event.h>
#include <linux/ptrace.h>
#include <linux/types.h>

typedef __u8 u8;
typedef __u16 u16;
typedef __u32 u32;
typedef __u64 u64;
typedef __s64 s64;

#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_tracing.h>

#define PF_IO_WORKER 0x00000010   /* io_uring's threads: they have an mm but never run user code */
#define PF_USER_WORKER 0x00004000 /* vhost's threads, likewise; since 6.4 */
#define PF_KTHREAD 0x00200000
#define CLONE_VM 0x00000100
#define CLONE_THREAD 0x00010000
#define EEXIST 17

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

/* ---- where code is mapped ---- */

struct maple_tree {
	void *ma_root;
};

struct maple_range_64 {
	void *parent;
	unsigned long pivot[15];
	void *slot[16];
};

struct maple_arange_64 {
	void *parent;
	unsigned long pivot[9];
	void *slot[10];
};

/* Only the names: the values are the running kernel's. */
enum maple_type {
	maple_range_64 = 102, /* those below are leaves */
	maple_arange_64 = 103,
};

struct rb_node {
	struct rb_node *rb_right;
	struct rb_node *rb_left;
};

struct rb_root {
	struct rb_node *rb_node;
};

struct timespec64 {
	s64 tv_sec;
};

struct super_block {
	u32 s_dev;
};

struct inode {
	struct super_block *i_sb;
	unsigned long i_ino;
	s64 i_size;
	s64 i_mtime_sec; /* since 6.11 */
};

struct inode___6_7 {
	struct timespec64 __i_mtime;
};

struct inode___5_15 {
	struct timespec64 i_mtime;
};

struct file {
	struct inode *f_inode;
};

struct vm_area_struct {
	unsigned long vm_start;
	unsigned long vm_end;
	struct mm_struct *vm_mm;
	unsigned long vm_flags;
	unsigned long vm_pgoff;
	struct file *vm_file;
};

struct vm_area_struct___5_15 {
	struct rb_node vm_rb;
};

typedef struct {
	void *vdso;
} mm_context_t;

struct xol_area {
	unsigned long vaddr;
};

struct uprobes_state {
	struct xol_area *xol_area;
};

struct mm_struct {
	struct maple_tree mm_mt;
	unsigned long task_size; /* addresses of the process end here */
	mm_context_t context;
	struct uprobes_state uprobes_state;
};

struct mm_struct___5_15 {
	struct rb_root mm_rb; /* up to 6.0 */
};

typedef struct seqcount {
	unsigned int sequence;
} seqcount_t;

struct mm_struct___6_13 {
	seqcount_t mm_lock_seq; /* odd while the mappings are being changed */
};

struct mm_struct___6_4 {
	int mm_lock_seq; /* counts up when they have been changed */
};

struct return_instance {
	unsigned long stack;
	unsigned long orig_ret_vaddr;
	struct return_instance *next;
};

struct uprobe_task {
	struct return_instance *return_instances;
};

/* ---- tasks, cgroups, events ---- */

struct ns_common {
	unsigned int inum;
};

struct pid_namespace {
	struct ns_common ns;
};

struct upid {
	int nr;
	struct pid_namespace *ns;
};

struct pid {
	unsigned int level;
	struct upid numbers[1];
};

struct kernfs_node {
	const char *name;
	u64 id;
};

struct cgroup;

struct cgroup_subsys_state {
	struct cgroup *cgroup;
	struct cgroup_subsys_state *parent;
};

struct cgroup_root;

struct cgroup {
	struct cgroup_subsys_state self;
	struct kernfs_node *kn;
	struct cgroup_root *root;
};

struct css_set {
	struct cgroup_subsys_state *subsys[16];
	struct cgroup *dfl_cgrp;
};

typedef struct {
	int counter;
} atomic_t;

struct signal_struct {
	atomic_t live;
};

struct sched_entity {
	u64 sum_exec_runtime;
};

struct task_struct {
	unsigned int flags;
	unsigned int in_execve : 1;
	struct sched_entity se;
	struct mm_struct *mm;
	int pid;
	int tgid;
	struct task_struct *group_leader;
	struct pid *thread_pid;
	u64 start_time;
	char comm[16];
	struct signal_struct *signal;
	struct css_set *cgroups;
	struct uprobe_task *utask;
};

struct hw_perf_event {
	u64 sample_period;
};

struct perf_event {
	struct hw_perf_event hw;
};

struct bpf_perf_event_data_kern {
	struct perf_event *event;
};

struct seq_file;

struct bpf_iter_meta {
	struct seq_file *seq;
	u64 seq_num;
};

struct bpf_iter__task {
	struct bpf_iter_meta *meta;
	struct task_struct *task;
};

/* Only the names: the values are the running kernel's. */
enum cgroup_subsys_id {
	cpu_cgrp_id = 101,
	memory_cgrp_id = 102,
	pids_cgrp_id = 103,
};

#pragma clang attribute pop

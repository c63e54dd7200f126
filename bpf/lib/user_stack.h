/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The walk of the current thread's user stack: bpf/lib/unwind.h with the kernel's mappings and the tables that user space put in place.
 * State is per CPU; a tick claims it before it walks (struct scratch's `busy`). Each search or step is a global function, which the verifier
 * looks at once; they share the state through its map, so that nothing but scalars crosses.
 */
#pragma once

#include "bpf/abi/record.h"
#include "bpf/lib/kernel.h"
#include "bpf/lib/regs.h"
#include "bpf/lib/tables.h"
#include "bpf/lib/unwind.h"
#include "bpf/lib/vma.h"

#define USER_MAPPINGS 8
#define USER_RULES 512           /* a power of two */
#define USER_RETURN_INSTANCES 64 /* the kernel's own limit */

enum user_mapping_kind {
	MAPPING_NONE = 0, /* no code */
	MAPPING_TABLE,
	MAPPING_GUESS,   /* nothing is known of its code */
	MAPPING_MISSING, /* nobody has looked at its file yet */
};

enum user_progress {
	USER_GO_ON = 0,
	USER_LAST_FRAME, /* nothing above it, or not to be found: u.end says which */
	USER_NO_FRAME,   /* what was taken for a frame is none */
};

struct user_mapping {
	u64 start, end;
	u64 offset;
	unwind_ref table;
	u32 kind; /* enum user_mapping_kind */
};

/*
 * What mappings[] was read of. As long as nothing of it changes the mappings stay from sample to sample, for a second: they are a third of what a
 * sample costs. mm alone is not enough, its memory is used again.
 */
struct user_memory {
	u64 mm;
	u64 space;      /* changes at exec */
	u64 started_ns; /* the process */
	u64 tables;     /* tables_changed */
	u64 sequence;   /* of the address space's mappings; UNKNOWN_SEQUENCE: do not keep them */
};
#define UNKNOWN_SEQUENCE (~0ull)
#define USER_MAPPINGS_KEPT_NS 1000000000

struct user_walk {
	struct unwind u;
	struct unwind_regs regs; /* as the sample found them */
	struct unwind_rule rule;
	struct user_memory memory;
	u64 loaded_ns; /* when mappings[] was empty last */
	u64 now_ns;
	u64 probed; /* where returns go that a uretprobe has taken; 0: nowhere */
	u64 frame;  /* the step's: bpf/abi/record.h */
	u32 in_syscall; /* the thread is in a system call: the next frame's pc stands behind its instruction, or where a signal handler begins */
	u32 after_syscall; /* ... and so did the first frame's */
	u32 has_missing;
	struct borescope_missing_file missing;
	u32 mapping_last, mapping_count;
	u32 mapping_unsure; /* not all of mappings[] may be kept for the next sample */
	struct user_mapping mappings[USER_MAPPINGS];
	u64 object[VMA_OBJECT_WORDS];
	u64 window[READER_WINDOW_WORDS];
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct user_walk);
} user_walks SEC(".maps");

/*
 * The rules found last, by the low bits of a hash of their place. What a sample costs is mostly memory that has gone cold since the last one: this is one
 * cache line where the search through a table takes four to eight.
 */
struct user_rule_entry {
	u64 place;  /* reference of the table << 32 | file offset */
	u32 tables; /* tables_changed when it was found, low half */
	struct unwind_rule rule;
};

struct user_rules {
	struct user_rule_entry entries[USER_RULES];
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct user_rules);
} user_rules SEC(".maps");

/* Written by user space only. */
__u64 tables_changed; /* counts up after each change of `files` */

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, UNWIND_MAX_FILES);
	__type(key, struct unwind_file_key);
	__type(value, struct unwind_file);
} files SEC(".maps");

struct unwind_chunk {
	__u32 words[TABLES_CHUNK_WORDS];
};

struct chunk_map {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__uint(key_size, sizeof(u32));
	__uint(value_size, sizeof(struct unwind_chunk));
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
	__uint(max_entries, UNWIND_MAX_CHUNKS);
	__type(key, u32);
	__array(values, struct chunk_map);
} chunks SEC(".maps");

static __always_inline struct user_walk *user_walk(void)
{
	u32 zero = 0;

	return bpf_map_lookup_elem(&user_walks, &zero);
}

static __always_inline u64 *reader_window(void)
{
	struct user_walk *w = user_walk();

	if (!w)
		return NULL;
	barrier_var(w); /* 6.1 refuses an offset that clang adds before the check */
	return w->window;
}

__noinline long reader_fill(u64 address)
{
	u64 bytes = 4096 - (address & 4095);
	struct user_walk *w = user_walk();

	if (!w)
		return -1;
	if (bytes > sizeof(w->window))
		bytes = sizeof(w->window);
	w->u.reader.words = 0;
	if (bpf_probe_read_user(w->window, bytes, (const void *)address))
		return -1;
	w->u.reader.window = address;
	w->u.reader.words = bytes / 8;
	return 0;
}

static __always_inline u64 *vma_object(void)
{
	struct user_walk *w = user_walk();

	if (!w)
		return NULL;
	barrier_var(w);
	return w->object;
}

static __always_inline const __u32 *tables_chunk(__u32 number)
{
	u32 zero = 0;
	void *map = bpf_map_lookup_elem(&chunks, &number);
	struct unwind_chunk *chunk = map ? bpf_map_lookup_elem(map, &zero) : NULL;

	return chunk ? chunk->words : NULL;
}

/* The mapping of pc into mappings[]; returns its index. */
__noinline int user_mapping_load(u64 pc)
{
	struct user_walk *w = user_walk();
	struct unwind_file_key key = {};
	struct unwind_file *file;
	struct user_mapping *m;
	struct vma vma = {};
	struct mm_struct *mm;
	u32 at;

	if (!w)
		return 0;
	mm = (void *)w->memory.mm;
	at = w->mapping_count++ % USER_MAPPINGS;
	m = &w->mappings[at];
	m->start = m->end = 0;
	m->kind = MAPPING_NONE;
	if (!vma_find(w->memory.mm, pc, &vma) || !vma.executable)
		return at;
	m->start = vma.start;
	m->end = vma.end;
	m->kind = MAPPING_GUESS;
	if (vma.file) {
		if (!vma_file_key(vma.file, &key)) {
			w->mapping_unsure = 1;
			return at;
		}
	} else if (vma.start == (u64)BPF_CORE_READ(mm, context.vdso)) {
		key.inode = UNWIND_VDSO_INODE;
		vma.offset = 0;
	} else {
		return at;
	}
	m->offset = vma.offset;
	file = bpf_map_lookup_elem(&files, &key);
	if (!file) {
		m->kind = MAPPING_MISSING;
		w->mapping_unsure = 1;
		if (!w->has_missing) {
			w->has_missing = 1;
			w->missing.key = key;
			w->missing.start = vma.start;
			w->missing.end = vma.end;
			w->missing.offset = vma.offset;
		}
		return at;
	}
	file->used_ns = w->now_ns;
	m->table = file->table;
	if (m->table)
		m->kind = MAPPING_TABLE;
	return at;
}

/* Index in mappings[] of the mapping of pc, when it is not the last one again. */
__noinline int user_mapping_search(u64 pc)
{
	struct user_walk *w = user_walk();
	u32 at;

	if (!w)
		return 0;
	for (u32 i = 1; i < USER_MAPPINGS; i++) {
		at = (w->mapping_last + i) % USER_MAPPINGS;
		if (pc - w->mappings[at].start < w->mappings[at].end - w->mappings[at].start) {
			w->mapping_last = at;
			return at;
		}
	}
	at = user_mapping_load(pc);
	w->mapping_last = at;
	return at;
}

/* The mapping of pc. Inline, as is user_rule: a call and its return cost as much as a dozen instructions, and a frame has few. */
static __always_inline struct user_mapping *user_mapping_of(struct user_walk *w, u64 pc)
{
	struct user_mapping *last = &w->mappings[w->mapping_last % USER_MAPPINGS];

	if (pc - last->start < last->end - last->start)
		return last;
	return &w->mappings[(u32)user_mapping_search(pc) % USER_MAPPINGS];
}

/* The rule of a table into rule, out of the table; 0: nothing is known of this code. */
__noinline int user_rule_search(u32 table, u64 file_offset)
{
	struct user_walk *w = user_walk();

	return w ? tables_find(table, file_offset, &w->rule) : 0;
}

/* The same, out of those found last if it is there. */
static __always_inline int user_rule(struct user_walk *w, u32 table, u64 file_offset)
{
	u64 place = (u64)table << 32 | (u32)file_offset;
	struct user_rule_entry *entry;
	struct user_rules *rules;
	u32 zero = 0;

	rules = bpf_map_lookup_elem(&user_rules, &zero);
	if (!rules || file_offset >> 32)
		return user_rule_search(table, file_offset);
	entry = &rules->entries[place * 0x9e3779b97f4a7c15ull >> 40 & (USER_RULES - 1)];
	if (entry->place == place && entry->tables == (u32)w->memory.tables) {
		w->rule = entry->rule;
		return 1;
	}
	if (!user_rule_search(table, file_offset))
		return 0;
	entry->place = place;
	entry->tables = w->memory.tables;
	entry->rule = w->rule;
	return 1;
}

/* Where the probed function whose frame ended at sp returns to; 0: not known. */
__noinline u64 user_return_of_probed(u64 sp)
{
	struct return_instance *instance;

	if (!bpf_core_type_exists(struct return_instance))
		return 0;
	instance = BPF_CORE_READ(bpf_get_current_task_btf(), utask, return_instances);
	for (int i = 0; i < USER_RETURN_INSTANCES && instance; i++) {
		if (BPF_CORE_READ(instance, stack) + CALL_PUSHES == sp)
			return BPF_CORE_READ(instance, orig_ret_vaddr);
		instance = BPF_CORE_READ(instance, next);
	}
	return 0;
}

#ifdef VSYSCALL_PAGE
static __always_inline int user_is_vsyscall(u64 pc)
{
	return pc >> 12 == VSYSCALL_PAGE >> 12;
}
#else
static __always_inline int user_is_vsyscall(u64 pc)
{
	return 0;
}
#endif

/* One frame: its word to `frame`, and the registers of its caller. Returns enum user_progress. */
__noinline int user_step(void)
{
	struct user_walk *w = user_walk();
	struct user_mapping *m;
	struct unwind *u;
	u64 pc, code = 0;
	u32 known;

	if (!w)
		return USER_NO_FRAME;
	u = &w->u;
	if (w->probed && u->pc - w->probed < 4096) {
		pc = u->interrupted ? 0 : user_return_of_probed(u->r[UNWIND_SP]);
		if (!pc) {
			w->frame = u->pc;
			unwind_stop(u, LOSS_URETPROBE);
			return USER_LAST_FRAME;
		}
		u->pc = pc;
	}
	w->frame = u->interrupted ? u->pc | USER_FRAME_INTERRUPTED : u->pc;
	pc = unwind_lookup_pc(u);
	if (w->in_syscall) {
		w->in_syscall = 0;
		if (!bpf_probe_read_user(&code, sizeof(code), (void *)(u->pc - sizeof(code))) && code_is_syscall(code)) {
			w->after_syscall = 1;
			pc--;
		}
		code = 0;
	}
	if (user_is_vsyscall(pc)) {
		__builtin_memset(&w->rule, 0, sizeof(w->rule));
		w->rule.kind = UNWIND_RULE_FRAME;
		w->rule.cfa_reg = UNWIND_SP;
		w->rule.cfa_offset = 8;
		w->rule.ra_offset = -8;
		known = 1;
	} else {
		m = user_mapping_of(w, pc);
		if (m->kind == MAPPING_NONE) {
			unwind_stop(u, u->guessed ? LOSS_NO_UNWIND_INFO : LOSS_NOT_CODE);
			/* The interrupted pc is a frame in any case: the call of a wild pointer ends up there. */
			return u->interrupted ? USER_LAST_FRAME : USER_NO_FRAME;
		}
		known = m->kind == MAPPING_TABLE && user_rule(w, m->table, pc - m->start + m->offset) && w->rule.kind != UNWIND_RULE_NONE;
		if (u->guessed && !(known && w->rule.kind == UNWIND_RULE_SIGNAL)) {
			/* Code that cannot be read reads as zeros, which are no call. */
			bpf_probe_read_user(&code, sizeof(code), (void *)(u->pc - sizeof(code)));
			if (!unwind_is_caller(u, code)) {
				unwind_stop(u, LOSS_NO_UNWIND_INFO); /* the code below keeps no frame pointer, and no table tells of it */
				return USER_NO_FRAME;
			}
		}
		if (m->kind == MAPPING_MISSING) {
			unwind_stop(u, LOSS_TABLES_NOT_READY);
			return USER_LAST_FRAME;
		}
	}
	if (known) {
		unwind_up(u, &w->rule);
	} else {
		code = 0;
		if (u->interrupted)
			bpf_probe_read_user(&code, sizeof(code), (void *)u->pc);
		unwind_guess(u, code);
	}
	return u->done ? USER_LAST_FRAME : USER_GO_ON;
}

/* Counts up with each change of the task's mappings. */
static __always_inline u64 user_sequence(struct task_struct *task)
{
	if (bpf_core_field_exists(struct mm_struct___6_13, mm_lock_seq)) {
		u32 sequence = ((struct mm_struct___6_13 *)task->mm)->mm_lock_seq.sequence;

		return sequence & 1 ? UNKNOWN_SEQUENCE : sequence;
	}
	if (bpf_core_field_exists(struct mm_struct___6_4, mm_lock_seq))
		return (u32)((struct mm_struct___6_4 *)task->mm)->mm_lock_seq;
	return UNKNOWN_SEQUENCE;
}

/* Before the first step; regs are set. The task is the current one; space 0: not known. */
static __always_inline void user_walk_begin(struct user_walk *w, struct task_struct *task, u64 space, u64 now_ns)
{
	struct user_memory now = {
		.mm = (u64)task->mm,
		.space = space,
		.started_ns = task->group_leader->start_time,
		.tables = *(volatile __u64 *)&tables_changed,
		.sequence = space ? user_sequence(task) : UNKNOWN_SEQUENCE,
	};

	w->now_ns = now_ns;
	w->after_syscall = 0;
	w->has_missing = 0;
	if (now.sequence == UNKNOWN_SEQUENCE || w->mapping_unsure || w->memory.mm != now.mm || w->memory.space != space ||
	    w->memory.started_ns != now.started_ns || w->memory.tables != now.tables || w->memory.sequence != now.sequence ||
	    now_ns - w->loaded_ns > USER_MAPPINGS_KEPT_NS) {
		w->memory = now;
		w->loaded_ns = now_ns;
		w->mapping_unsure = 0;
		w->mapping_last = 0;
		w->mapping_count = 0;
		for (u32 i = 0; i < USER_MAPPINGS; i++)
			w->mappings[i].start = w->mappings[i].end = 0;
	}
	w->probed = 0;
	if (bpf_core_type_exists(struct xol_area)) {
		struct xol_area *xol = task->mm->uprobes_state.xol_area;

		if (xol)
			w->probed = xol->vaddr;
	}
	unwind_begin(&w->u, &w->regs);
	w->u.reader.words = 0;
}

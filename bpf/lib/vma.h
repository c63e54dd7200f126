/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The mapping of an address, out of the kernel's own tree of the current process's mappings. It is read without its lock, which an interrupt
 * must not take: nodes and mappings stay readable until RCU lets them go, and what is found is checked against what was looked for. In the
 * rare race the answer is "none".
 *
 * All reads go through the object buffer: one helper call an object, then plain loads.
 */
#pragma once

#include "bpf/abi/unwind.h"
#include "bpf/lib/kernel.h"

#define VMA_OBJECT_WORDS 32 /* a node of the tree has 256 bytes */
#define VMA_TREE_LEVELS 10  /* of 10 to 16 slots each */
#define VMA_RB_LEVELS 48
#define VM_EXEC 4
#define PAGE_SHIFT_MMAP 12  /* the unit of vm_pgoff where we run */

/* The per-CPU buffer; defined by the program, which owns the memory. */
static __u64 *vma_object(void);

struct vma {
	u64 start, end;
	u64 offset; /* of start, in the file */
	u64 file;   /* struct file, 0: none */
	u32 executable;
};

#define VMA_READ(words, type, at) \
	bpf_probe_read_kernel(words, bpf_core_type_size(type) < VMA_OBJECT_WORDS * 8 ? bpf_core_type_size(type) : VMA_OBJECT_WORDS * 8, (void *)(at))

/* 8 bytes of the object that was read last; 0 if it is longer than we read. The offset is a constant by the time the verifier sees it. */
static __always_inline u64 vma_field(const u64 *words, u32 offset)
{
	return offset / 8 < VMA_OBJECT_WORDS ? words[offset / 8] : 0;
}
#define VMA_FIELD(words, type, field) vma_field(words, bpf_core_field_offset(type, field))

/* What the slot for pc of this node of a maple tree holds; 0: none, or the node is dead. */
__noinline u64 vma_next(u64 entry, u64 pc)
{
	u64 node = entry & ~255ull, type = entry >> 3 & 15, *words = vma_object();
	u32 pivots, slots, count, i;

	if (!words || bpf_probe_read_kernel(words, VMA_OBJECT_WORDS * 8, (void *)node))
		return 0;
	if ((VMA_FIELD(words, struct maple_range_64, parent) & ~255ull) == node)
		return 0; /* replaced just now */
	if (type == bpf_core_enum_value(enum maple_type, maple_arange_64)) {
		pivots = bpf_core_field_offset(struct maple_arange_64, pivot) / 8;
		slots = bpf_core_field_offset(struct maple_arange_64, slot) / 8;
		count = bpf_core_field_size(struct maple_arange_64, pivot) / 8;
	} else {
		pivots = bpf_core_field_offset(struct maple_range_64, pivot) / 8;
		slots = bpf_core_field_offset(struct maple_range_64, slot) / 8;
		count = bpf_core_field_size(struct maple_range_64, pivot) / 8;
	}
	for (i = 0; i < 16; i++) {
		u64 pivot = words[(pivots + i) % VMA_OBJECT_WORDS];

		/* Behind the last used slot stand zeros: it reaches up to what the node above says. */
		if (i >= count || pivot >= pc || (i && !pivot))
			break;
	}
	return words[(slots + i) % VMA_OBJECT_WORDS];
}

/* The struct vm_area_struct that may hold pc, or 0. */
__noinline u64 vma_candidate(u64 mm, u64 pc)
{
	u64 entry;

	if (bpf_core_field_exists(struct mm_struct, mm_mt)) {
		entry = (u64)BPF_CORE_READ((struct mm_struct *)mm, mm_mt.ma_root);
		for (int level = 0; level < VMA_TREE_LEVELS; level++) {
			/* The root's word alone is marked as a node's: a tree of one entry has no node. */
			if ((!level && (entry & 3) != 2) || entry <= 4096)
				return 0;
			if ((entry >> 3 & 15) < bpf_core_enum_value(enum maple_type, maple_range_64))
				return vma_next(entry, pc);
			entry = vma_next(entry, pc);
		}
		return 0;
	}
	if (!bpf_core_field_exists(struct vm_area_struct___5_15, vm_rb))
		return 0;
	entry = (u64)BPF_CORE_READ((struct mm_struct___5_15 *)mm, mm_rb.rb_node);
	for (int level = 0; level < VMA_RB_LEVELS; level++) {
		u64 vma = entry - bpf_core_field_offset(struct vm_area_struct___5_15, vm_rb), *words = vma_object();
		struct rb_node *links = (void *)entry;

		if (!entry || !words || VMA_READ(words, struct vm_area_struct, vma))
			return 0;
		if (pc >= VMA_FIELD(words, struct vm_area_struct, vm_end))
			entry = (u64)BPF_CORE_READ(links, rb_right);
		else if (pc < VMA_FIELD(words, struct vm_area_struct, vm_start))
			entry = (u64)BPF_CORE_READ(links, rb_left);
		else
			return vma;
	}
	return 0;
}

/* The mapping of mm that holds pc; 0: none. */
static __always_inline int vma_find(u64 mm, u64 pc, struct vma *out)
{
	u64 vma = vma_candidate(mm, pc), *words = vma_object();

	if (!vma || vma & 7 || !words || VMA_READ(words, struct vm_area_struct, vma))
		return 0;
	out->start = VMA_FIELD(words, struct vm_area_struct, vm_start);
	out->end = VMA_FIELD(words, struct vm_area_struct, vm_end);
	if (VMA_FIELD(words, struct vm_area_struct, vm_mm) != mm || pc < out->start || pc >= out->end)
		return 0;
	out->offset = VMA_FIELD(words, struct vm_area_struct, vm_pgoff) << PAGE_SHIFT_MMAP;
	out->file = VMA_FIELD(words, struct vm_area_struct, vm_file);
	out->executable = VMA_FIELD(words, struct vm_area_struct, vm_flags) & VM_EXEC;
	return 1;
}

/* 0: could not be read. */
static __always_inline int vma_file_key(u64 file, struct unwind_file_key *key)
{
	u64 inode = (u64)BPF_CORE_READ((struct file *)file, f_inode), *words = vma_object();
	struct super_block *sb;

	if (!inode || !words || VMA_READ(words, struct inode, inode))
		return 0;
	key->inode = VMA_FIELD(words, struct inode, i_ino);
	key->size = VMA_FIELD(words, struct inode, i_size);
	if (bpf_core_field_exists(struct inode, i_mtime_sec))
		key->mtime_sec = VMA_FIELD(words, struct inode, i_mtime_sec);
	else if (bpf_core_field_exists(struct inode___6_7, __i_mtime))
		key->mtime_sec = VMA_FIELD(words, struct inode___6_7, __i_mtime.tv_sec);
	else
		key->mtime_sec = VMA_FIELD(words, struct inode___5_15, i_mtime.tv_sec);
	sb = (void *)VMA_FIELD(words, struct inode, i_sb);
	key->device = BPF_CORE_READ(sb, s_dev);
	key->pad = 0;
	return 1;
}

/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Unwind tables as the programs read them. User space writes them into chunks (map `chunks`: an array of arrays of one element, each mapped
 * into user space) and says by `files` where a file's table lies. Everything is found by file offset of the code: the mapping of a
 * program counter comes from the kernel's own tree of VMAs, so that there is nothing to keep for each process.
 *
 * A table: struct unwind_table, its pages (64 KiB of file offsets each), their rows, its rules. A row is 4 bytes, low 16 bits of the
 * file offset above the index of a rule; it is in force from its offset up to the next row. The first row of a page that has rows
 * stands at the page's begin. Rows of one page lie in one chunk, without a gap.
 */
#pragma once

#include <linux/types.h>

#define UNWIND_CHUNK_BYTES (2u << 20)
#define UNWIND_MAX_CHUNKS 2048
#define UNWIND_PAGE_BITS 16
#define UNWIND_MAX_FILES 16384
#define UNWIND_MAX_RULES 65536u /* of one table */

/* Bytes at a multiple of 8 in a chunk: number of the chunk << 18 | offset / 8. 0 is none: no table lies at the begin of chunk 0. */
typedef __u32 unwind_ref;
#define UNWIND_REF(chunk, offset) ((__u32)(chunk) << 18 | (__u32)(offset) >> 3)
#define UNWIND_REF_CHUNK(ref) ((ref) >> 18)
#define UNWIND_REF_OFFSET(ref) (((ref) & ((1u << 18) - 1)) << 3)

/* A file as the kernel knows it, from the inode of a VMA. A file overwritten in place is another one. */
struct unwind_file_key {
	__u64 inode;
	__u64 size;      /* bytes */
	__s64 mtime_sec; /* of the last change of its content */
	__u32 device;    /* major << 20 | minor */
	__u32 pad;       /* 0 */
};
#define UNWIND_VDSO_INODE 1 /* with size, mtime_sec, device 0: the kernel's vDSO */

struct unwind_file {
	unwind_ref table; /* 0: the file was looked at and tells nothing: frame pointers are tried */
	__u32 pad;
	__u64 used_ns;    /* CLOCK_MONOTONIC, when a program looked a rule up last: the programs write it */
};

struct unwind_page {
	unwind_ref rows;
	__u32 count;      /* of rows; 0: nothing is known of this page */
};

struct unwind_table {
	__u32 first_page; /* file offset >> UNWIND_PAGE_BITS */
	__u32 page_count;
	unwind_ref rules;
	__u32 rule_count;
	/* struct unwind_page pages[page_count] follows, in the same chunk */
};

#define UNWIND_ROW(offset, rule) (((__u32)(offset) & 0xffff) << 16 | (__u32)(rule))
#define UNWIND_ROW_OFFSET(row) ((row) >> 16)
#define UNWIND_ROW_RULE(row) ((row) & 0xffff)

enum unwind_rule_kind {
	UNWIND_RULE_NONE = 0,    /* nothing is known of this code: frame pointers are tried. Rule 0 of each table */
	UNWIND_RULE_FRAME,       /* CFA, caller's frame pointer and return address as told below */
	UNWIND_RULE_PLT,         /* CFA = sp + cfa_offset, and 8 more from byte cfa_add of a 16-byte entry on */
	UNWIND_RULE_SIGNAL,      /* the trampoline to which a signal handler returns */
	UNWIND_RULE_END,         /* nobody calls this: the stack is whole */
	UNWIND_RULE_UNSUPPORTED, /* there is a rule that this struct cannot express */
	UNWIND_RULE_SWITCH,      /* the caller may stand on another stack (Go's systemstack, asmcgocall, calls into the vDSO): with UNWIND_FP_AT_CFA
				  * found as by UNWIND_RULE_FRAME, else not known */
};

enum unwind_fp_kind {
	UNWIND_FP_SAME = 0,
	UNWIND_FP_AT_CFA,  /* saved at CFA + fp_offset */
	UNWIND_FP_AT_FP,   /* saved at frame pointer + fp_offset: realigned frames */
	UNWIND_FP_UNKNOWN, /* from here on up it is not known */
};

enum unwind_ra_kind {
	UNWIND_RA_AT_CFA = 0, /* at CFA + ra_offset */
	UNWIND_RA_IN_REG,     /* in register ra_offset (DWARF number): an interrupted frame only */
};

/*
 * The registers of a thread by DWARF number. x86-64: 0 rax, 1 rdx, 2 rcx, 3 rbx, 4 rsi, 5 rdi, 6 rbp, 7 rsp, 8 to 15 themselves.
 * aarch64: 0 to 30 are x0 to x30, 31 is sp.
 */
#if defined(__TARGET_ARCH_arm64) || defined(__aarch64__)
#define UNWIND_REGISTERS 32
#define UNWIND_FP 29
#define UNWIND_SP 31
#define UNWIND_RED_ZONE 16
#define UNWIND_BELOW_SP 8 /* Go keeps the caller's frame pointer right below the stack pointer */
#else
#define UNWIND_REGISTERS 16
#define UNWIND_FP 6
#define UNWIND_SP 7
#define UNWIND_BELOW_SP 0 /* bytes below a caller's stack pointer that belong to its frame */
#define UNWIND_RED_ZONE 128 /* bytes below the stack pointer that belong to an interrupted function */
#endif

struct unwind_regs {
	__u64 pc;
	__u64 r[UNWIND_REGISTERS];
#if defined(__TARGET_ARCH_arm64) || defined(__aarch64__)
	__u64 code_mask; /* bits that addresses of the process have: in those above, saved return addresses may bear a signature */
#endif
};

/* How the caller of one frame is found. Registers have DWARF numbers. Afterwards sp = CFA. */
struct unwind_rule {
	__u8 kind;      /* enum unwind_rule_kind */
	__u8 cfa_reg;   /* CFA = [cfa_reg] + cfa_offset; others than sp and frame pointer are known in an interrupted frame only */
	__u8 cfa_deref; /* 1: CFA = *([cfa_reg] + cfa_offset) + cfa_add */
	__u8 fp;        /* enum unwind_fp_kind */
	__s32 cfa_offset;
	__s16 cfa_add;  /* aarch64, without cfa_deref: what is saved at CFA + … lies 8 times this further: large frames have it at their lower end */
	__s16 fp_offset;
	__s16 ra_offset;
	__u8 ra;        /* enum unwind_ra_kind */
	__u8 pad;
};

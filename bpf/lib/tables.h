/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * A rule by file offset, out of the chunks that bpf/abi/unwind.h tells of: one C for BPF and for user space. What is read is masked to its
 * chunk: a table that is taken away or written over meanwhile yields a wrong rule, never a wild read.
 */
#pragma once

#include "bpf/abi/unwind.h"

/* The words of a chunk, or null; defined by the environment. */
static const __u32 *tables_chunk(__u32 chunk);

#define TABLES_CHUNK_WORDS (UNWIND_CHUNK_BYTES / 4)
#define TABLES_WORD(words, at) ((words)[(at) % TABLES_CHUNK_WORDS])

#ifdef __bpf__
/* Keeps clang from making a branch out of arithmetic: the verifier would follow both ways of each step. */
#define tables_opaque(value) asm volatile("" : "+r"(value))
#else
#define tables_opaque(value) ((void)(value))
#endif

/* Index of the last of count > 0 rows, sorted by offset, that begins at or before `offset`; of the first if none does. */
static inline __attribute__((always_inline)) __u32 tables_search(const __u32 *words, __u32 first, __u32 count, __u32 offset)
{
	__u32 low = first;

	for (int i = 0; i < 17; i++) { /* 2^16 rows at most */
		__u32 half = count / 2;
		__u64 begun;

		if (!half)
			break;
		/* 1 if the row in the middle has begun, else 0. */
		begun = ((__u64)UNWIND_ROW_OFFSET(TABLES_WORD(words, low + half)) - offset - 1) >> 63;
		tables_opaque(begun);
		low += begun * half;
		count -= half;
	}
	return low;
}

/* The rule in force at a file offset; 0: nothing is known of this code. */
static inline __attribute__((always_inline)) int tables_find(unwind_ref table, __u64 file_offset, struct unwind_rule *out)
{
	__u32 at = UNWIND_REF_OFFSET(table) / 4, rules, rule_count, rows, count, row;
	__u64 page = file_offset >> UNWIND_PAGE_BITS;
	const __u32 *words = tables_chunk(UNWIND_REF_CHUNK(table));

	if (!words)
		return 0;
	page -= TABLES_WORD(words, at);
	if (page >= TABLES_WORD(words, at + 1))
		return 0;
	rules = TABLES_WORD(words, at + 2);
	rule_count = TABLES_WORD(words, at + 3);
	at += sizeof(struct unwind_table) / 4 + (__u32)page * (sizeof(struct unwind_page) / 4);
	rows = TABLES_WORD(words, at);
	count = TABLES_WORD(words, at + 1);
	if (!count)
		return 0;
	words = tables_chunk(UNWIND_REF_CHUNK(rows));
	if (!words)
		return 0;
	at = tables_search(words, UNWIND_REF_OFFSET(rows) / 4, count, file_offset & ((1u << UNWIND_PAGE_BITS) - 1));
	row = UNWIND_ROW_RULE(TABLES_WORD(words, at));
	if (row >= rule_count)
		return 0;
	words = tables_chunk(UNWIND_REF_CHUNK(rules));
	if (!words)
		return 0;
	at = UNWIND_REF_OFFSET(rules) / 4 + row * (sizeof(struct unwind_rule) / 4);
	for (__u32 i = 0; i < sizeof(struct unwind_rule) / 4; i++)
		((__u32 *)out)[i] = TABLES_WORD(words, at + i);
	return 1;
}

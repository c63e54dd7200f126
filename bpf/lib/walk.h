/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The frame-pointer walk of a user stack: one C for BPF and for user space.
 *
 * A frame is two words: [bp] = the caller's bp, [bp + 8] = the return address. Addresses only rise and stay within 16 MiB above
 * the stack pointer: a wild bp may point into a mapped device, where a read has side effects.
 */
#pragma once

#include "bpf/abi/loss.h"
#include "bpf/lib/reader.h"

#define WALK_SPAN (16ull << 20)
#define WALK_FRAME 16

struct walk {
	struct reader reader;
	__u64 pc;    /* in: of this frame; out: of the caller */
	__u64 bp;    /* frame pointer of this frame */
	__u64 low;   /* the next frame may not lie below */
	__u64 limit; /* nor end above */
	__u32 done;  /* there is no further frame */
	__u32 end;   /* enum borescope_loss: why */
};

static inline __attribute__((always_inline)) void walk_begin(struct walk *w, __u64 pc, __u64 sp, __u64 bp)
{
	w->pc = pc;
	w->bp = bp;
	w->low = sp;
	w->limit = sp + WALK_SPAN;
	w->done = 0;
	w->end = LOSS_NONE;
}

/* One frame up: afterwards either done, or pc is the return address into the caller. */
static inline __attribute__((always_inline)) void walk_up(struct walk *w)
{
	__u64 words[2];

	w->done = 1;
	if (!w->bp) /* the thread's first function has no caller */
		return;
	if (w->bp < w->low || w->bp > w->limit - WALK_FRAME || w->bp & 7) {
		w->end = LOSS_BAD_FRAME_POINTER;
		return;
	}
	if (reader_words(&w->reader, w->bp, words)) {
		w->end = LOSS_STACK_UNREADABLE;
		return;
	}
	if (!words[1])
		return;
	w->low = w->bp + WALK_FRAME;
	w->bp = words[0];
	w->pc = words[1];
	w->done = 0;
}

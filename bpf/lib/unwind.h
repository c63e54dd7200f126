/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * From one frame of a user stack to its caller: one C for BPF and for user space. Which rule is in force at a pc is the environment's
 * part (bpf/lib/tables.h in the kernel, sampler/unwind/recorded.cc for recorded samples).
 *
 * A walk: unwind_begin; then for each frame, as long as !done: look up the rule at unwind_lookup_pc(u), and unwind_up or
 * unwind_guess. Addresses only rise and stay within 16 MiB above the stack pointer: a wild pointer may lead into a mapped device, where a read
 * has side effects. Only a signal frame and a function that is known to move to another stack may lead there.
 */
#pragma once

#include "bpf/abi/loss.h"
#include "bpf/abi/unwind.h"
#include "bpf/lib/code.h"
#include "bpf/lib/reader.h"

#define UNWIND_SPAN (16ull << 20)
#define UNWIND_SEGMENTS 4 /* stacks that one walk may lead through */
#define UNWIND_FP_BIT (1u << UNWIND_FP)
#define UNWIND_SP_BIT (1u << UNWIND_SP)

enum unwind_guessed {
	UNWIND_BY_RULE = 0,
	UNWIND_BY_CODE,  /* at the stack pointer, since the code looked like a function's first or last instruction */
	UNWIND_BY_CHAIN, /* beside a saved frame pointer */
};

struct unwind {
	struct reader reader;
	__u64 pc;
	__u64 r[UNWIND_REGISTERS]; /* r[UNWIND_SP] is the CFA of the frame below */
#if defined(__TARGET_ARCH_arm64) || defined(__aarch64__)
	__u64 code_mask;   /* as in struct unwind_regs */
#endif
	__u64 limit;       /* no read ends above */
	__u32 known;       /* bit n: r[n] is known */
	__u32 interrupted; /* this frame was interrupted at pc; else pc is a return address */
	__u32 guessed;     /* enum unwind_guessed: pc was not found by a rule, see unwind_is_caller */
	__u32 segments;
	__u32 done;        /* there is no further frame */
	__u32 end;         /* enum borescope_loss: why; LOSS_NONE: nobody called this frame */
};

#define UNWIND_INLINE static inline __attribute__((always_inline))

UNWIND_INLINE void unwind_stop(struct unwind *u, __u32 end)
{
	u->done = 1;
	u->end = end;
}

/* The next frame was interrupted and all its registers are in r. */
UNWIND_INLINE void unwind_enter(struct unwind *u)
{
	u->known = ~0u >> (32 - UNWIND_REGISTERS);
	u->interrupted = 1;
	u->guessed = UNWIND_BY_RULE;
	u->limit = u->r[UNWIND_SP] + UNWIND_SPAN;
}

/* The reader is the caller's to set. */
UNWIND_INLINE void unwind_begin(struct unwind *u, const struct unwind_regs *regs)
{
	u->pc = regs->pc;
	for (int i = 0; i < UNWIND_REGISTERS; i++)
		u->r[i] = regs->r[i];
#if defined(__TARGET_ARCH_arm64) || defined(__aarch64__)
	u->code_mask = regs->code_mask;
#endif
	u->segments = 1;
	u->done = 0;
	u->end = LOSS_NONE;
	unwind_enter(u);
}

/* Where to look the rule up: a return address may stand behind its function's last instruction. */
UNWIND_INLINE __u64 unwind_lookup_pc(const struct unwind *u)
{
	return u->interrupted ? u->pc : u->pc - 1;
}

/*
 * Whether pc, found along frame pointers, may be a return address; before: the 8 bytes before it. Not to be asked of a signal trampoline,
 * which nobody calls.
 */
UNWIND_INLINE int unwind_is_caller(const struct unwind *u, __u64 before)
{
	return !u->guessed || code_ends_in_call(before);
}

/* Is the word at address one that this frame may have? */
UNWIND_INLINE int unwind_may_read(const struct unwind *u, __u64 address, __u64 size)
{
	__u64 low = u->r[UNWIND_SP] - (u->interrupted ? UNWIND_RED_ZONE : UNWIND_BELOW_SP);

	return address >= low && address <= u->limit - size && !(address & 7);
}

/* Two words; 0 and done on failure. */
UNWIND_INLINE int unwind_words(struct unwind *u, __u64 address, __u64 out[2], __u32 out_of_range)
{
	if (!unwind_may_read(u, address, 16)) {
		unwind_stop(u, out_of_range);
		return 0;
	}
	if (reader_words(&u->reader, address, out)) {
		unwind_stop(u, LOSS_STACK_UNREADABLE);
		return 0;
	}
	return 1;
}

UNWIND_INLINE int unwind_word(struct unwind *u, __u64 address, __u64 *out, __u32 out_of_range)
{
	if (!unwind_may_read(u, address, 8)) {
		unwind_stop(u, out_of_range);
		return 0;
	}
	if (reader_word(&u->reader, address, out)) {
		unwind_stop(u, LOSS_STACK_UNREADABLE);
		return 0;
	}
	return 1;
}

/* A return address as it was saved; programs with pointer authentication sign it. */
UNWIND_INLINE __u64 unwind_unsigned(const struct unwind *u, __u64 pc)
{
#if defined(__TARGET_ARCH_arm64) || defined(__aarch64__)
	return pc & u->code_mask;
#else
	(void)u;
	return pc;
#endif
}

/* pc, sp and frame pointer are the caller's from here on; what other registers hold is not followed. */
UNWIND_INLINE void unwind_to_caller(struct unwind *u, __u64 pc, __u64 sp, __u64 fp, __u32 fp_known, __u32 guessed)
{
	u->pc = unwind_unsigned(u, pc);
	u->r[UNWIND_SP] = sp;
	u->r[UNWIND_FP] = fp;
	u->known = UNWIND_SP_BIT | (fp_known ? UNWIND_FP_BIT : 0);
	u->interrupted = 0;
	u->guessed = guessed;
}

UNWIND_INLINE void unwind_frame(struct unwind *u, const struct unwind_rule *rule)
{
	__u32 reg = rule->cfa_reg % UNWIND_REGISTERS, fp_known = u->known & UNWIND_FP_BIT;
	__u64 sp = u->r[UNWIND_SP], fp = u->r[UNWIND_FP], cfa, saved, slot, words[2];
	int have_ra = 0;

	if (!(u->known >> reg & 1)) {
		unwind_stop(u, LOSS_REGISTER_UNKNOWN);
		return;
	}
	cfa = u->r[reg] + (__s64)rule->cfa_offset;
	if (rule->kind == UNWIND_RULE_PLT) {
		if ((__s32)(u->pc & 15) >= rule->cfa_add)
			cfa += 8;
	} else if (rule->cfa_deref) {
		if (!unwind_word(u, cfa, &words[0], LOSS_BAD_CFA))
			return;
		cfa = words[0] + (__s64)rule->cfa_add;
	}
	if (rule->kind == UNWIND_RULE_SWITCH && (cfa <= sp || cfa > u->limit)) {
		if (u->segments >= UNWIND_SEGMENTS) {
			unwind_stop(u, LOSS_STACK_SWITCH);
			return;
		}
		u->segments++;
		sp = cfa + (__s64)rule->fp_offset; /* what is read of the frame lies above */
		u->r[UNWIND_SP] = sp;
		u->limit = cfa + UNWIND_SPAN;
	}
	if (cfa < sp || (cfa == sp && !u->interrupted) || cfa > u->limit || cfa & 7) {
		unwind_stop(u, LOSS_BAD_CFA);
		return;
	}
	saved = cfa;
#if defined(__TARGET_ARCH_arm64) || defined(__aarch64__)
	if (!rule->cfa_deref)
		saved += 8 * (__s64)rule->cfa_add;
#endif
	if (rule->fp == UNWIND_FP_AT_CFA || (rule->fp == UNWIND_FP_AT_FP && fp_known)) {
		slot = (rule->fp == UNWIND_FP_AT_CFA ? saved : fp) + (__s64)rule->fp_offset;
		/* As good as always the return address stands right above. */
		if (rule->ra == UNWIND_RA_AT_CFA && slot + 8 == saved + (__s64)rule->ra_offset) {
			if (!unwind_words(u, slot, words, LOSS_BAD_CFA))
				return;
			have_ra = 1;
			fp = words[0];
			fp_known = 1;
		} else {
			/* gcc's rule for a realigned frame still asks the frame pointer when `leave` has restored it. */
			fp_known = unwind_may_read(u, slot, 8) && !reader_word(&u->reader, slot, &fp);
		}
	} else if (rule->fp == UNWIND_FP_UNKNOWN) {
		fp_known = 0;
	}
	if (rule->ra == UNWIND_RA_IN_REG) {
		reg = (__u32)rule->ra_offset % UNWIND_REGISTERS;
		if (!(u->known >> reg & 1)) {
			unwind_stop(u, LOSS_REGISTER_UNKNOWN);
			return;
		}
		words[1] = u->r[reg];
	} else if (!have_ra && !unwind_word(u, saved + (__s64)rule->ra_offset, &words[1], LOSS_BAD_CFA)) {
		return;
	}
	unwind_to_caller(u, words[1], cfa, fp, fp_known, UNWIND_BY_RULE);
}

UNWIND_INLINE int unwind_pair(struct unwind *u, __u64 address, __u64 *first, __u64 *second)
{
	__u64 words[2];

	if (reader_words(&u->reader, address, words)) {
		unwind_stop(u, LOSS_STACK_UNREADABLE);
		return 0;
	}
	*first = words[0];
	*second = words[1];
	return 1;
}

#if defined(__TARGET_ARCH_arm64) || defined(__aarch64__)

/* At the trampoline sp points at 128 bytes of siginfo; then comes the ucontext, with a fault address at 176 and the registers behind it. */
#define UNWIND_SIGNAL_REGS (128 + 176 + 8)

UNWIND_INLINE int unwind_signal_regs(struct unwind *u, __u64 sp)
{
	__u64 at = sp + UNWIND_SIGNAL_REGS, state;

	if (!unwind_may_read(u, at, (UNWIND_REGISTERS + 2) * 8)) {
		unwind_stop(u, LOSS_BAD_CFA);
		return 0;
	}
	for (int i = 0; i < UNWIND_REGISTERS; i += 2) {
		if (!unwind_pair(u, at + 8 * i, &u->r[i], &u->r[i + 1]))
			return 0;
	}
	return unwind_pair(u, at + 8 * UNWIND_REGISTERS, &u->pc, &state);
}

#else

/* At the trampoline sp points at the ucontext, whose registers start 40 bytes in. */
#define UNWIND_SIGNAL_REGS 40

UNWIND_INLINE int unwind_signal_regs(struct unwind *u, __u64 sp)
{
	/* As the kernel's struct sigcontext_64 has them. All at once would take too much of the stack that the programs of a sample share. */
	__u64 at = sp + UNWIND_SIGNAL_REGS, *r = u->r, flags;

	if (!unwind_may_read(u, at, 18 * 8)) {
		unwind_stop(u, LOSS_BAD_CFA);
		return 0;
	}
	return unwind_pair(u, at, &r[8], &r[9]) && unwind_pair(u, at + 16, &r[10], &r[11]) && unwind_pair(u, at + 32, &r[12], &r[13]) &&
	       unwind_pair(u, at + 48, &r[14], &r[15]) && unwind_pair(u, at + 64, &r[5], &r[4]) /* rdi, rsi */ &&
	       unwind_pair(u, at + 80, &r[6], &r[3]) /* rbp, rbx */ && unwind_pair(u, at + 96, &r[1], &r[0]) /* rdx, rax */ &&
	       unwind_pair(u, at + 112, &r[2], &r[7]) /* rcx, rsp */ && unwind_pair(u, at + 128, &u->pc, &flags);
}

#endif

/* What the signal interrupted: all its registers lie in the signal frame. It may stand on another stack. */
UNWIND_INLINE void unwind_signal(struct unwind *u)
{
	__u64 sp = u->r[UNWIND_SP];

	if (!unwind_signal_regs(u, sp))
		return;
	if (u->r[UNWIND_SP] <= sp || u->r[UNWIND_SP] >= u->limit) {
		if (u->segments >= UNWIND_SEGMENTS) {
			unwind_stop(u, LOSS_STACK_SWITCH);
			return;
		}
		u->segments++;
	}
	/* Its limit counts from its own stack pointer: an alternate stack may lie right below the stack that was interrupted. */
	unwind_enter(u);
}

/* One frame up by a rule of any kind but UNWIND_RULE_NONE: see unwind_guess. */
UNWIND_INLINE void unwind_up(struct unwind *u, const struct unwind_rule *rule)
{
	if (rule->kind == UNWIND_RULE_FRAME || rule->kind == UNWIND_RULE_PLT ||
	    (rule->kind == UNWIND_RULE_SWITCH && rule->fp == UNWIND_FP_AT_CFA))
		unwind_frame(u, rule);
	else if (rule->kind == UNWIND_RULE_SIGNAL)
		unwind_signal(u);
	else if (rule->kind == UNWIND_RULE_END)
		unwind_stop(u, LOSS_NONE);
	else if (rule->kind == UNWIND_RULE_SWITCH)
		unwind_stop(u, LOSS_STACK_SWITCH);
	else
		unwind_stop(u, LOSS_UNSUPPORTED_RULE);
}

/*
 * One frame up along frame pointers: for code of which nothing is known. code: the 8 bytes at pc if it was interrupted and they could be
 * read, else 0.
 */
UNWIND_INLINE void unwind_guess(struct unwind *u, __u64 code)
{
	enum code_place place = u->interrupted ? code_place_of(code) : CODE_BODY;
	__u64 sp = u->r[UNWIND_SP], fp = u->r[UNWIND_FP], words[2];

	if (place == CODE_ENTRY) {
#if defined(__TARGET_ARCH_arm64) || defined(__aarch64__)
		unwind_to_caller(u, u->r[30], sp, fp, 1, UNWIND_BY_CODE);
#else
		if (unwind_word(u, sp, &words[0], LOSS_NO_UNWIND_INFO))
			unwind_to_caller(u, words[0], sp + 8, fp, u->known & UNWIND_FP_BIT, UNWIND_BY_CODE);
#endif
		return;
	}
	if (place == CODE_PUSHED)
		fp = sp;
	if (!fp && u->guessed == UNWIND_BY_CHAIN) { /* the thread's first function has no caller */
		unwind_stop(u, LOSS_NONE);
		return;
	}
	if (!(u->known & UNWIND_FP_BIT) || fp < sp) {
		unwind_stop(u, LOSS_NO_UNWIND_INFO);
		return;
	}
	if (unwind_words(u, fp, words, LOSS_NO_UNWIND_INFO))
		unwind_to_caller(u, words[1], fp + 16, words[0], 1, UNWIND_BY_CHAIN);
}

/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The register file: where the kernel keeps a thread's user registers, for each architecture, by the numbers of bpf/abi/unwind.h.
 * Nothing else knows register names.
 */
#pragma once

#include "bpf/abi/unwind.h"
#include "bpf/lib/kernel.h"

#if defined(__TARGET_ARCH_x86)

#define USER_CODE_64 0x33  /* __USER_CS; a 32-bit program runs with 0x23 */
#define CALL_PUSHES 8      /* bytes that a call takes from the stack */
#define VSYSCALL_PAGE 0xffffffffff600000ull /* mapped by no VMA; each of its calls starts with an instruction that is emulated, up to its return */

typedef struct pt_regs arch_regs;

/* Did the interrupt hit user mode? */
static __always_inline int tick_in_user_mode(const struct bpf_perf_event_data *ctx)
{
	return ctx->regs.cs & 3;
}

#define REGS_OF(from, out)             \
	do {                           \
		(out)->pc = (from)->rip;   \
		(out)->r[0] = (from)->rax; \
		(out)->r[1] = (from)->rdx; \
		(out)->r[2] = (from)->rcx; \
		(out)->r[3] = (from)->rbx; \
		(out)->r[4] = (from)->rsi; \
		(out)->r[5] = (from)->rdi; \
		(out)->r[6] = (from)->rbp; \
		(out)->r[7] = (from)->rsp; \
		(out)->r[8] = (from)->r8;  \
		(out)->r[9] = (from)->r9;  \
		(out)->r[10] = (from)->r10; \
		(out)->r[11] = (from)->r11; \
		(out)->r[12] = (from)->r12; \
		(out)->r[13] = (from)->r13; \
		(out)->r[14] = (from)->r14; \
		(out)->r[15] = (from)->r15; \
	} while (0)

/* Both return 0 for a 32-bit program, whose stack words are not 8 bytes wide. */
static __always_inline int regs_of_tick(const struct bpf_perf_event_data *ctx, struct unwind_regs *out)
{
	u64 segment = ctx->regs.cs;

	barrier_var(segment); /* else clang reads it from whichever registers these are: by a pointer that the verifier refuses */
	REGS_OF(&ctx->regs, out);
	return (segment & 0xffff) == USER_CODE_64;
}

static __always_inline int regs_of_saved(const arch_regs *saved, struct unwind_regs *out)
{
	REGS_OF(saved, out);
	return (saved->cs & 0xffff) == USER_CODE_64;
}

/* Did a system call enter the kernel? Then pc stands behind its instruction, which may be its function's last (rt_sigreturn). */
static __always_inline int regs_of_syscall(const arch_regs *saved)
{
	return (s64)saved->orig_rax >= 0;
}

#elif defined(__TARGET_ARCH_arm64)

#define PSTATE_MODE_MASK 0xf
#define PSTATE_AARCH32 0x10
#define CALL_PUSHES 0

typedef struct user_pt_regs arch_regs;

/* Above these bits a saved return address bears a signature, if the program signs them. */
static __always_inline u64 regs_code_mask(void)
{
	return (u64)BPF_CORE_READ(bpf_get_current_task_btf(), mm, task_size) - 1;
}

static __always_inline int tick_in_user_mode(const struct bpf_perf_event_data *ctx)
{
	return (ctx->regs.pstate & PSTATE_MODE_MASK) == 0;
}

#define REGS_OF(from, out)                          \
	do {                                        \
		(out)->pc = (from)->pc;             \
		_Pragma("unroll")                   \
		for (int i = 0; i < 31; i++)        \
			(out)->r[i] = (from)->regs[i]; \
		(out)->r[UNWIND_SP] = (from)->sp;   \
		(out)->code_mask = regs_code_mask(); \
	} while (0)

static __always_inline int regs_of_tick(const struct bpf_perf_event_data *ctx, struct unwind_regs *out)
{
	u64 state = ctx->regs.pstate;

	barrier_var(state);
	REGS_OF(&ctx->regs, out);
	return !(state & PSTATE_AARCH32);
}

static __always_inline int regs_of_saved(const arch_regs *saved, struct unwind_regs *out)
{
	REGS_OF(saved, out);
	return !(saved->pstate & PSTATE_AARCH32);
}

static __always_inline int regs_of_syscall(const arch_regs *saved)
{
	/* Its number is noted after interrupts are let in again: the code before pc has to tell. */
	return 1;
}

#else
#error "no register file for this architecture: add one here"
#endif

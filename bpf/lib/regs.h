/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The register file: what the walk needs of a thread's user registers, for each architecture. Nothing else knows register names.
 */
#pragma once

#include "bpf/lib/kernel.h"

struct user_regs {
	u64 pc;
	u64 sp;
	u64 bp; /* frame pointer */
	u32 native; /* 0: a 32-bit program, whose stack words are not 8 bytes wide */
};

#if defined(__TARGET_ARCH_x86)

#define USER_CODE_64 0x33 /* __USER_CS; a 32-bit program runs with 0x23 */

typedef struct pt_regs arch_regs;

/* Did the interrupt hit user mode? */
static __always_inline int tick_in_user_mode(const struct bpf_perf_event_data *ctx)
{
	return ctx->regs.cs & 3;
}

static __always_inline void regs_of_tick(const struct bpf_perf_event_data *ctx, struct user_regs *out)
{
	out->pc = ctx->regs.rip;
	out->sp = ctx->regs.rsp;
	out->bp = ctx->regs.rbp;
	out->native = (ctx->regs.cs & 0xffff) == USER_CODE_64;
}

static __always_inline void regs_of_saved(const arch_regs *saved, struct user_regs *out)
{
	out->pc = saved->rip;
	out->sp = saved->rsp;
	out->bp = saved->rbp;
	out->native = (saved->cs & 0xffff) == USER_CODE_64;
}

#elif defined(__TARGET_ARCH_arm64)

#define PSTATE_MODE_MASK 0xf
#define PSTATE_AARCH32 0x10
#define REG_FRAME_POINTER 29

typedef struct user_pt_regs arch_regs;

static __always_inline int tick_in_user_mode(const struct bpf_perf_event_data *ctx)
{
	return (ctx->regs.pstate & PSTATE_MODE_MASK) == 0;
}

static __always_inline void regs_of_tick(const struct bpf_perf_event_data *ctx, struct user_regs *out)
{
	out->pc = ctx->regs.pc;
	out->sp = ctx->regs.sp;
	out->bp = ctx->regs.regs[REG_FRAME_POINTER];
	out->native = !(ctx->regs.pstate & PSTATE_AARCH32);
}

static __always_inline void regs_of_saved(const arch_regs *saved, struct user_regs *out)
{
	out->pc = saved->pc;
	out->sp = saved->sp;
	out->bp = saved->regs[REG_FRAME_POINTER];
	out->native = !(saved->pstate & PSTATE_AARCH32);
}

#else
#error "no register file for this architecture: add one here"
#endif

/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Why a sample or a part of a stack is missing: the one table from which the BPF counters, the Prometheus label `reason`, the
 * status field `lost.<name>` and the text of the frame `[truncated: text]` are made.
 *
 * BORESCOPE_LOSS(enumerator, "name", "text", class)
 *   class LOST:      the sample is gone; its period in nanoseconds is counted as lost
 *   class TRUNCATED: the sample is there, its stack is cut
 */
#pragma once

#define BORESCOPE_LOSS_TABLE(BORESCOPE_LOSS)                                                              \
	BORESCOPE_LOSS(LOSS_NONE, "none", "complete", TRUNCATED)                                          \
	/* in BPF */                                                                                      \
	BORESCOPE_LOSS(LOSS_RING_FULL, "ring_full", "ring buffer full", LOST)                             \
	BORESCOPE_LOSS(LOSS_SCRATCH_BUSY, "scratch_busy", "scratch busy", LOST)                           \
	BORESCOPE_LOSS(LOSS_PERIOD_UNREADABLE, "period_unreadable", "period unreadable", LOST)            \
	BORESCOPE_LOSS(LOSS_STACK_UNREADABLE, "stack_unreadable", "stack memory not present", TRUNCATED)  \
	BORESCOPE_LOSS(LOSS_TOO_DEEP, "too_deep", "too many frames", TRUNCATED)                           \
	BORESCOPE_LOSS(LOSS_TIME_STOP, "time_stop", "time limit in the interrupt", TRUNCATED)             \
	BORESCOPE_LOSS(LOSS_NO_USER_REGS, "no_user_registers", "user registers not available", TRUNCATED) \
	BORESCOPE_LOSS(LOSS_PROGRAM_32_BIT, "program_32_bit", "32-bit program", TRUNCATED)                \
	BORESCOPE_LOSS(LOSS_TABLES_NOT_READY, "tables_not_ready", "tables not ready", TRUNCATED)          \
	/* in BPF and in user space, by the same C */                                                     \
	BORESCOPE_LOSS(LOSS_NO_UNWIND_INFO, "no_unwind_info", "no unwind information", TRUNCATED)         \
	BORESCOPE_LOSS(LOSS_UNSUPPORTED_RULE, "unsupported_rule", "unwind rule not supported", TRUNCATED) \
	BORESCOPE_LOSS(LOSS_REGISTER_UNKNOWN, "register_unknown", "register of the unwind rule not known", TRUNCATED) \
	BORESCOPE_LOSS(LOSS_STACK_SWITCH, "stack_switch", "stack switch", TRUNCATED)                      \
	BORESCOPE_LOSS(LOSS_BAD_CFA, "bad_cfa", "stack does not rise", TRUNCATED)                         \
	BORESCOPE_LOSS(LOSS_NOT_CODE, "not_code", "return address is not code", TRUNCATED)                \
	BORESCOPE_LOSS(LOSS_URETPROBE, "uretprobe", "return address taken by a probe", TRUNCATED)         \
	/* in user space */                                                                               \
	BORESCOPE_LOSS(LOSS_UNKNOWN_CONTAINER, "unknown_container", "container could not be told", LOST)  \
	BORESCOPE_LOSS(LOSS_STACK_TABLE_FULL, "stack_table_full", "stack table full", LOST)               \
	BORESCOPE_LOSS(LOSS_SAMPLER_RESTART, "sampler_restart", "sampler restarted", LOST)                \
	BORESCOPE_LOSS(LOSS_PUBLISH_FAILED, "publish_failed", "sink did not take the window", LOST)

enum borescope_loss {
#define BORESCOPE_LOSS(enumerator, name, text, kind) enumerator,
	BORESCOPE_LOSS_TABLE(BORESCOPE_LOSS)
#undef BORESCOPE_LOSS
	LOSS_MAX,
};

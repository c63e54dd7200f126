/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The little that is read from machine code where nothing else tells of a function: JIT code, files without tables. One C for BPF and
 * for user space; the bytes come as a word, lowest address in the lowest byte.
 */
#pragma once

#include <linux/types.h>

/* What the instruction at an interrupted pc tells of the frame. */
enum code_place {
	CODE_BODY = 0, /* nothing: the frame pointer is taken to be the function's own */
	CODE_ENTRY,    /* the frame does not stand yet, or no more: as right after the call */
	CODE_PUSHED,   /* the caller's frame pointer was pushed, the function's own is not set yet */
};

#if defined(__TARGET_ARCH_arm64) || defined(__aarch64__)

/* code: the 8 bytes at the interrupted pc. */
static inline __attribute__((always_inline)) enum code_place code_place_of(__u64 code)
{
	__u32 first = (__u32)code, second = code >> 32;

	if ((first & 0xfffffc1f) == 0xd65f0000 || (first & 0xfffffbff) == 0xd65f0bff /* ret, retaa, retab */ ||
	    (first & 0xffffff3f) == 0xd503233f /* paciasp, autiasp, with either key */ || (first & 0xffffff3f) == 0xd503241f /* bti */ ||
	    (first & 0xffc07fff) == 0xa9807bfd || (first & 0xffc07fff) == 0xa9007bfd /* stp x29, x30, [sp, …] */)
		return CODE_ENTRY;
	if ((first & 0xff8003ff) == 0xd10003ff /* sub sp, sp, #n */ && (second & 0xffc07fff) == 0xa9007bfd)
		return CODE_ENTRY;
	if ((first & 0xff8003ff) == 0x910003ff /* add sp, sp, #n */ && (second & 0xfffffc1f) == 0xd65f0000)
		return CODE_ENTRY;
	if (first == 0x910003fd /* mov x29, sp */)
		return CODE_PUSHED;
	return CODE_BODY;
}

/* code: the 8 bytes before the pc of a thread in a system call. */
static inline __attribute__((always_inline)) int code_is_syscall(__u64 code)
{
	return code >> 32 == 0xd4000001; /* svc #0 */
}

/* code: the 8 bytes before a return address. */
static inline __attribute__((always_inline)) int code_ends_in_call(__u64 code)
{
	__u32 last = (__u32)(code >> 32);

	return (last & 0xfc000000) == 0x94000000 /* bl */ || (last & 0xfffffc1f) == 0xd63f0000 || (last & 0xfefff800) == 0xd63f0800 /* blr, blraa … */;
}

#else

static inline __attribute__((always_inline)) enum code_place code_place_of(__u64 code)
{
	if ((code & 0xffffffff) == 0xfa1e0ff3) /* endbr64 */
		code >>= 32;
	if ((code & 0xff) == 0x55 /* push rbp */ || (code & 0xff) == 0xc3 || (code & 0xff) == 0xc2 || (code & 0xffff) == 0xc3f3 /* ret */)
		return CODE_ENTRY;
	if ((code & 0xffffff) == 0xe58948 || (code & 0xffffff) == 0xec8b48) /* mov rbp, rsp */
		return CODE_PUSHED;
	return CODE_BODY;
}

static inline __attribute__((always_inline)) int code_is_syscall(__u64 code)
{
	return code >> 48 == 0x050f;
}

/* call through a register or memory: byte 0xff, then a ModRM byte with 2 in the middle; its size follows from the ModRM byte. */
static inline __attribute__((always_inline)) int code_is_indirect_call(__u64 code, __u32 size)
{
	__u32 at = 64 - 8 * size, modrm = code >> (at + 8) & 0xff, needs = 2;

	if ((code >> at & 0xff) != 0xff || (modrm & 0x38) != 0x10)
		return 0;
	if (modrm >> 6 != 3 && (modrm & 7) == 4) {
		needs++; /* SIB byte */
		if (modrm >> 6 == 0 && size > 3 && (code >> (at + 16) & 7) == 5)
			needs += 4;
	}
	if (modrm >> 6 == 1)
		needs += 1;
	else if (modrm >> 6 == 2 || (modrm & 0xc7) == 5)
		needs += 4;
	return needs == size;
}

static inline __attribute__((always_inline)) int code_ends_in_call(__u64 code)
{
	return (code >> 24 & 0xff) == 0xe8 || code_is_indirect_call(code, 2) || code_is_indirect_call(code, 3) ||
	       code_is_indirect_call(code, 4) || code_is_indirect_call(code, 6) || code_is_indirect_call(code, 7);
}

#endif

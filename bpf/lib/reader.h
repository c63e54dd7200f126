/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * How a walk sees memory. In the kernel: the current task's, without faulting anything in. In user space: a recorded image.
 * A reader is a plain struct, so that it can cross into a global BPF function inside the walk's state.
 */
#pragma once

#include <linux/types.h>

#ifdef __bpf__

struct reader {
	__u64 unused; /* the current task needs no handle */
};

/* Two words at address; 0 on success. */
static inline __attribute__((always_inline)) long reader_words(const struct reader *reader, __u64 address, __u64 out[2])
{
	(void)reader;
	return bpf_probe_read_user(out, 16, (const void *)address);
}

#else

#include <string.h>

struct reader {
	const unsigned char *bytes;
	__u64 address; /* of the first byte */
	__u64 size;
};

static inline long reader_words(const struct reader *reader, __u64 address, __u64 out[2])
{
	if (address < reader->address || reader->size < 16 || address - reader->address > reader->size - 16)
		return -1;
	memcpy(out, reader->bytes + (address - reader->address), 16);
	return 0;
}

#endif

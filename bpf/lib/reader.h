/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * How a walk sees memory. In the kernel: the current task's, without faulting anything in. In user space: a recorded image.
 * A reader is a plain struct, so that it can cross into a global BPF function inside the walk's state.
 */
#pragma once

#include <linux/types.h>

#ifdef __bpf__

/* A stack is read in pieces: one read of 1 KiB costs less than two of 16 bytes, and holds most of a stack of 10 frames. */
#define READER_WINDOW_WORDS 128

struct reader {
	__u64 window; /* address of what the window holds */
	__u64 words;  /* how many; 0: nothing */
};

/* The per-CPU window's words; defined by the program, which owns the memory. */
static __u64 *reader_window(void);
/* Reads the window from address on, up to the end of its page: no page is touched that the walk does not ask for. 0 on success. */
long reader_fill(__u64 address);

/* So many words (1 or 2) at address; 0 on success. */
static inline __attribute__((always_inline)) long reader_read(const struct reader *reader, __u64 address, __u64 *out, __u32 count)
{
	__u64 at = (address - reader->window) / 8;
	__u64 *words = reader_window();

	if (address & 7 || (address & 4095) + count * 8 > 4096)
		return bpf_probe_read_user(out, count * 8, (const void *)address);
	if (at + count > reader->words) {
		if (reader_fill(address))
			return -1;
		at = 0;
	}
	if (!words)
		return -1;
	out[0] = words[at % READER_WINDOW_WORDS];
	if (count > 1)
		out[1] = words[(at + 1) % READER_WINDOW_WORDS];
	return 0;
}

/* Two words at address; 0 on success. */
static inline __attribute__((always_inline)) long reader_words(const struct reader *reader, __u64 address, __u64 out[2])
{
	return reader_read(reader, address, out, 2);
}

/* One word. */
static inline __attribute__((always_inline)) long reader_word(const struct reader *reader, __u64 address, __u64 *out)
{
	return reader_read(reader, address, out, 1);
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

static inline long reader_word(const struct reader *reader, __u64 address, __u64 *out)
{
	if (address < reader->address || reader->size < 8 || address - reader->address > reader->size - 8)
		return -1;
	memcpy(out, reader->bytes + (address - reader->address), 8);
	return 0;
}

#endif

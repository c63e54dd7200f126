/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * How a walk sees memory. In the kernel: the current task's, without faulting anything in. In user space: a recorded image.
 * A reader is a plain struct, so that it can cross into a global BPF function inside the walk's state.
 */
#pragma once

#include <linux/types.h>

#ifdef __bpf__

/* A stack is read in one piece first: one 4 KiB read costs less than three of two words, and holds most stacks of 20 frames. */
#define READER_WINDOW_WORDS 512

struct reader {
	__u64 window; /* address of what the window holds */
	__u64 words;  /* how many; 0: nothing */
};

/* The per-CPU window's words; defined by the program, which owns the memory. */
static __u64 *reader_window(void);

/* The window from address on; if that leads out of the stack, up to the end of the page. */
static inline __attribute__((always_inline)) void reader_fill(struct reader *reader, __u64 address)
{
	__u64 *words = reader_window(), count = READER_WINDOW_WORDS;

	reader->words = 0;
	if (!words)
		return;
	address &= ~7ull;
	if (bpf_probe_read_user(words, READER_WINDOW_WORDS * 8, (const void *)address)) {
		count = (4096 - (address & 4095)) / 8;
		if (count > READER_WINDOW_WORDS || bpf_probe_read_user(words, count * 8, (const void *)address))
			return;
	}
	reader->window = address;
	reader->words = count;
}

/* Two words at address; 0 on success. */
static inline __attribute__((always_inline)) long reader_words(const struct reader *reader, __u64 address, __u64 out[2])
{
	__u64 at = (address - reader->window) / 8;
	__u64 *words;

	if (!(address & 7) && at + 1 < reader->words && (words = reader_window())) {
		out[0] = words[at % READER_WINDOW_WORDS];
		out[1] = words[(at + 1) % READER_WINDOW_WORDS];
		return 0;
	}
	return bpf_probe_read_user(out, 16, (const void *)address);
}

/* One word. */
static inline __attribute__((always_inline)) long reader_word(const struct reader *reader, __u64 address, __u64 *out)
{
	__u64 at = (address - reader->window) / 8;
	__u64 *words;

	if (!(address & 7) && at < reader->words && (words = reader_window())) {
		*out = words[at % READER_WINDOW_WORDS];
		return 0;
	}
	return bpf_probe_read_user(out, 8, (const void *)address);
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

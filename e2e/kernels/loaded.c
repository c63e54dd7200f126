// SPDX-License-Identifier: Apache-2.0
// In the guest: one line for each BPF program that is loaded: its name (15 letters at most) and the instructions that the verifier went through.
#include <linux/bpf.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

int main(void) {
  union bpf_attr attr;
  unsigned id = 0;
  for (;;) {
    memset(&attr, 0, sizeof attr);
    attr.start_id = id;
    if (syscall(SYS_bpf, BPF_PROG_GET_NEXT_ID, &attr, sizeof attr) != 0) return 0;
    id = attr.next_id;
    memset(&attr, 0, sizeof attr);
    attr.prog_id = id;
    int fd = (int)syscall(SYS_bpf, BPF_PROG_GET_FD_BY_ID, &attr, sizeof attr);
    if (fd < 0) continue;
    struct bpf_prog_info info;
    memset(&info, 0, sizeof info);
    memset(&attr, 0, sizeof attr);
    attr.info.bpf_fd = (unsigned)fd;
    attr.info.info_len = sizeof info;
    attr.info.info = (unsigned long)&info;
    if (syscall(SYS_bpf, BPF_OBJ_GET_INFO_BY_FD, &attr, sizeof attr) == 0) printf("%s %u\n", info.name, info.verified_insns);
    close(fd);
  }
}

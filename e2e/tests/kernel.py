# SPDX-License-Identifier: Apache-2.0
"""What the kernel of a node says stops the sampling there, and stands in the NodeSampler."""
import json
import os
import time

from lib import cluster as c
from lib.world import cpu


def _metrics(node):
    return c.cluster("exec", "--node", node, "curl", "-sS", "http://127.0.0.1:8082/metrics")


def _say(line):
    fd = os.open("/dev/kmsg", os.O_WRONLY)  # a new one each time: the kernel limits what comes by one
    os.write(fd, (line + "\n").encode())  # without the newline it might go on: nobody sees it yet
    os.close(fd)


def test_kernel_fault(world):
    """An oops with a BPF program on the stack, in the kernel's log while a session runs: all stops, KernelUnsafe, until the sampler starts anew."""
    pod = world.pod("cpp", "node1", "busy")
    world.install()  # the log is followed for two minutes after the last session
    c.wait("KernelUnsafe=False", 20, lambda: (c.condition_of(c.get("nodesampler", "node1"), "KernelUnsafe") or {}).get("status") == "False")
    program = f"bpf_prog_{world.random.getrandbits(64):016x}_tick"
    fault = ["<1>BUG: unable to handle page fault for address: ffffc90000a31000 (written by a test)", f"<4>RIP: 0010:{program}+0x1c4/0x2f0"]
    for line in fault:  # nothing is armed: it does not count
        _say(line)
    name = world.start(target={"podName": pod}, durationSeconds=60, profiles=cpu(199))
    c.wait("samples", 15, lambda: world.samples("node1", name))
    time.sleep(1.5)
    c.expect(c.condition_of(c.get("nodesampler", "node1"), "KernelUnsafe")["status"] == "False", "KernelUnsafe by what stood in the log before")
    taken = time.monotonic_ns()
    for line in fault:
        _say(line)

    def unsafe():
        condition = c.condition_of(c.get("nodesampler", "node1"), "KernelUnsafe")
        return condition if condition["status"] == "True" else None
    condition = c.wait("KernelUnsafe=True", 5, unsafe)
    told = (time.monotonic_ns() - taken) / 1e9
    for part in (program, "unable to handle page fault", "started anew", "dmesg"):
        c.expect(part in condition["message"], f"{part!r} is not in {condition}")
    ready = c.condition_of(c.get("nodesampler", "node1"), "Ready")
    c.expect(ready["status"] == "False" and ready["reason"] == "KernelUnsafe", f"Ready: {ready}")
    session = world.finished(name, seconds=15)
    failed = c.condition_of(session, "Failed")
    c.expect(failed["status"] == "True" and failed["reason"] == "KernelUnsafe" and program in failed["message"], f"the session: {failed}")
    last = max(s["time_ns"] for s in world.samples("node1", name))
    c.expect(last - taken <= 300e6, f"the last sample came {(last - taken) / 1e6:.0f} ms after the fault")
    c.expect("borescope_sampler_kernel_unsafe 1" in _metrics("node1"), "the fault is not in the metrics")
    c.cluster("pid", "sampler-node1")  # it has not died of it

    refused = world.start(target={"podName": pod}, durationSeconds=5)
    session = world.finished(refused, seconds=15)
    text = json.dumps(session["status"]["conditions"])
    c.expect("KernelUnsafe" in text and program in text, f"a new session is not refused by it: {text}")

    world.install()
    c.expect(c.condition_of(c.wait("the new sampler", 20, lambda: (s := c.get("nodesampler", "node1")) and (c.condition_of(s, "KernelUnsafe") or {}).get("status") == "False" and s),
                            "Ready")["status"] == "True", "not ready after it was started anew")
    again = world.start(target={"podName": pod}, durationSeconds=3, profiles=cpu(199))
    c.expect(c.condition_of(world.finished(again), "Complete")["status"] == "True", "after a new start it does not sample")
    return f"told {told:.1f} s after the fault, last sample {(last - taken) / 1e6:.0f} ms after it"


def test_warning_about_the_kernel(world):
    """A setting of the kernel that makes profiles worse stands in status and metrics; the sessions go on."""
    path = "/proc/sys/kernel/kptr_restrict"
    before = open(path).read()
    pod = world.pod("cpp", "node1", "busy")
    try:
        open(path, "w").write("2")
        world.install()

        def warned():
            sampler = c.get("nodesampler", "node1")
            return sampler if [f["name"] for f in sampler["status"].get("kernelFindings", []) if f["action"] == "Warned"] == ["kptr-restrict"] else None
        sampler = c.wait("the finding kptr-restrict", 20, warned)
        degraded = c.condition_of(sampler, "Degraded")
        c.expect(degraded["status"] == "True" and degraded["reason"] == "KernelWarned" and "kptr_restrict" in degraded["message"], f"Degraded: {degraded}")
        c.expect('borescope_sampler_kernel_findings{action="Warned",name="kptr-restrict"} 1' in _metrics("node1"), "the finding is not in the metrics")
        name = world.start(target={"podName": pod}, durationSeconds=3, profiles=cpu(199))
        c.expect(c.condition_of(world.finished(name), "Complete")["status"] == "True", "it does not sample any more")
    finally:
        open(path, "w").write(before)
        world.install()

# SPDX-License-Identifier: Apache-2.0
"""Debian's kernels: fetched by apt-get from private package lists (nothing is installed), unpacked into the cache by version."""
import functools
import glob
import lzma
import os
import re
import shutil
import subprocess
import tempfile

CACHE = os.path.join(os.environ.get("BORESCOPE_CACHE", os.path.expanduser("~/.cache/borescope")), "kernels")

# name: (suite, architecture, packages with @ for the version, what a version of this kernel looks like)
KERNELS = {
    "5.10": ("bullseye", "amd64", ["linux-image-@-cloud-amd64"], r"5\.10\.\d+-\d+"),
    "6.1": ("bookworm", "amd64", ["linux-image-@-cloud-amd64"], r"6\.1\.\d+-\d+"),
    "6.12": ("trixie", "amd64", ["linux-image-@-cloud-amd64"], r"6\.12\.\d+\+deb13"),
    "6.18": ("trixie-backports", "amd64", ["linux-image-@-cloud-amd64"], r"6\.18\.\d+\+deb13"),
    "7.3": ("trixie-backports", "amd64", ["linux-binary-@-cloud-amd64", "linux-modules-@-cloud-amd64"], r"7\.3\.\d+\+deb13"),
    "6.1-arm64": ("bookworm", "arm64", ["linux-image-@-cloud-arm64", "busybox-static"], r"6\.1\.\d+-\d+"),
}


class Kernel:
    """Unpacked: .image, .modules (folder), .release, .busybox: this machine's, if none was fetched with the kernel."""

    def __init__(self, folder):
        self.modules = (glob.glob(f"{folder}/lib/modules/*") + glob.glob(f"{folder}/usr/lib/modules/*"))[0]
        self.release = os.path.basename(self.modules)
        self.busybox = (glob.glob(f"{folder}/bin/busybox") + [shutil.which("busybox")])[0]
        self.image = (glob.glob(f"{folder}/boot/vmlinu[xz]-*") + glob.glob(f"{self.modules}/vmlinu[xz]"))[0]

    def module(self, name):
        """[(name, bytes)] of a module, after those it needs; [] when the kernel has none of this name."""
        files = glob.glob(f"{glob.escape(self.modules)}/**/{name}.ko*", recursive=True)
        if not files:
            return []
        with (lzma.open if files[0].endswith(".xz") else open)(files[0], "rb") as f:
            data = f.read()
        needs = re.search(rb"\0depends=([^\0]*)\0", data)
        before = [m for n in needs[1].decode().split(",") if n for m in self.module(n)] if needs else []
        return list(dict(before + [(name, data)]).items())


def fetch(name):
    """The newest of this kernel's line; what is in the cache is not looked for again."""
    suite, architecture, packages, version = KERNELS[name]
    have = [d for d in glob.glob(f"{CACHE}/{name}/*") if re.fullmatch(version, os.path.basename(d))]
    if have:
        return Kernel(have[0])
    os.makedirs(f"{CACHE}/{name}", exist_ok=True)
    with tempfile.TemporaryDirectory(dir=CACHE) as scratch:
        os.makedirs(f"{scratch}/lists/partial")
        with open("/etc/apt/sources.list.d/debian.sources", encoding="utf-8") as f:
            mirror = re.search(r"^URIs:\s*(\S+)", f.read(), re.M)[1]
        with open(f"{scratch}/list.sources", "w") as f:
            f.write(f"Types: deb\nURIs: {mirror}\nSuites: {suite}\nComponents: main\nSigned-By: /usr/share/keyrings/debian-archive-keyring.gpg\n")
        options = {"Dir::State::lists": f"{scratch}/lists", "Dir::Etc::sourcelist": "/dev/null", "Dir::Etc::sourceparts": scratch, "Dir::Cache::pkgcache": "",
                   "Dir::Cache::srcpkgcache": "", "APT::Sandbox::User": "root", "APT::Architecture": architecture, "APT::Architectures": architecture,
                   "Acquire::Languages": "none"}
        run = functools.partial(subprocess.run, check=True, capture_output=True, text=True, cwd=scratch)
        flags = [f for key, value in options.items() for f in ("-o", f"{key}={value}")]
        run(["apt-get", "-q", *flags, "update"])
        pattern = re.compile(re.escape(packages[0]).replace("@", f"({version})"))
        found = [m[1] for n in run(["apt-cache", *flags, "pkgnames", "linux-"]).stdout.split() if (m := pattern.fullmatch(n))]
        if not found:
            raise RuntimeError(f"no package {packages[0]} of {version} in {suite}")
        newest = max(found, key=lambda v: [int(n) for n in re.findall(r"\d+", v)])
        run(["apt-get", "-q", *flags, "download", *(p.replace("@", newest) for p in packages)])
        for deb in glob.glob(f"{scratch}/*.deb"):
            run(["dpkg-deb", "-x", deb, f"{scratch}/root"])
        shutil.move(f"{scratch}/root", f"{CACHE}/{name}/{newest}")
    return Kernel(f"{CACHE}/{name}/{newest}")

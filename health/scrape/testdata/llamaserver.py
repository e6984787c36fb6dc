# SPDX-License-Identifier: Apache-2.0
# Copyright The Segue Authors
"""A real llama-server on a free port of loopback: python3 llamaserver.py MODEL.gguf [NAME=JSON ...]. Prints its address."""

import json
import signal
import sys

import xllamacpp

params = xllamacpp.CommonParams()
params.model.path = sys.argv[1]
params.model_alias = {"small"}
params.hostnames = ["127.0.0.1"]
params.port = 0
params.n_parallel = 2
params.n_ctx = 2048
params.cpuparams.n_threads = 1
params.cpuparams_batch.n_threads = 1
params.warmup = False
params.verbosity = -1
for setting in sys.argv[2:]:
    name, value = setting.split("=", 1)
    setattr(params, name, json.loads(value))
server = xllamacpp.Server(params)
print("listening", server.listening_address, flush=True)
signal.pause()

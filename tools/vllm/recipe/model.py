# SPDX-License-Identifier: Apache-2.0
# Copyright The Segue Authors
"""Writes the weights of a GGUF file as safetensors with configuration and tokenizer: model.py MODEL.gguf FOLDER."""

import os
import sys

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

folder, file = os.path.split(sys.argv[1])
out = sys.argv[2]
tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=file)
read = AutoModelForCausalLM.from_pretrained(folder, gguf_file=file, dtype=torch.float32)
# What was read from GGUF counts as quantised, and isn't saved: the weights move to a fresh model.
config = read.config.to_dict()
config.pop("quantization_config", None)
config["dtype"] = torch.bfloat16
model = type(read)(type(read.config).from_dict(config)).to(torch.bfloat16)
lost = model.load_state_dict({k: v.to(torch.bfloat16) for k, v in read.state_dict().items()}, strict=False)
if lost.unexpected_keys or set(lost.missing_keys) - {"lm_head.weight"}:
    sys.exit(f"the weights don't fit the model: {lost}")
model.tie_weights()
model.generation_config = read.generation_config
model.save_pretrained(out, safe_serialization=True)
tokenizer.save_pretrained(out)

# What the tokenizer writes, it reads; and the model knows a capital.
again = AutoTokenizer.from_pretrained(out)
text = "Hello world! It's 12345 d\u00e9j\u00e0-vu \U0001f642\n\tdef f(x):\n    return x  # ok"
if again.decode(again(text)["input_ids"]) != text:
    sys.exit("the tokenizer doesn't give back what it reads")
chat = [{"role": "user", "content": "What is the capital of France? Answer in one sentence."}]
ids = again(again.apply_chat_template(chat, add_generation_prompt=True, tokenize=False), return_tensors="pt")["input_ids"]
answer = again.decode(model.eval().generate(ids, max_new_tokens=16, do_sample=False)[0][ids.shape[1] :])
if "Paris" not in answer:
    sys.exit(f"the model answers {answer!r}")

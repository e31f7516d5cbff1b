#!/usr/bin/env python3
"""Makes ops.safetensors, the values that tests/engine/test_golden.cpp compares with, by PyTorch.

    ninja -C build tests/engine/dump-samples
    build/tests/engine/dump-samples samples.safetensors
    python3 tests/golden/make.py samples.safetensors tests/golden/ops.safetensors

Run it again when the samples of engine/ops have changed. It needs torch and numpy, of any version since 1.13.
"""

import json
import struct
import sys

import numpy as np
import torch
import torch.nn.functional as F

DTYPES = {"F64": np.float64, "I64": np.int64, "BOOL": np.bool_}
NAMES = {np.dtype(v): k for k, v in DTYPES.items()}


def load(path):
    data = open(path, "rb").read()
    (n,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + n])
    metadata = header.pop("__metadata__")
    metadata.pop("tandem.crc32")
    tensors = {}
    for name, entry in header.items():
        begin, end = (8 + n + offset for offset in entry["data_offsets"])
        values = np.frombuffer(data[begin:end], DTYPES[entry["dtype"]])
        tensors[name] = values.reshape(entry["shape"]).copy()
    return tensors, metadata


def save(path, tensors, metadata):
    header, blocks, at = {"__metadata__": metadata}, [], 0
    # Larger elements first: each tensor then starts at a multiple of its element size.
    for name, t in sorted(tensors.items(), key=lambda item: (-item[1].itemsize, item[0])):
        header[name] = {"dtype": NAMES[t.dtype], "shape": t.shape, "data_offsets": [at, at + t.nbytes]}
        blocks.append(np.ascontiguousarray(t).tobytes())
        at += t.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + b"".join(blocks))


def output_gradient(out):
    """As in tests/engine/helpers.h."""
    i = torch.arange(out.numel(), dtype=torch.float64)
    return ((i * 7 + 3) % 11 / 4 - 1.375).reshape(out.shape)


def main(samples, golden):
    tensors, metadata = load(samples)
    for name, expression in metadata.items():
        inputs = []
        while f"{name}/x{len(inputs)}" in tensors:
            inputs.append(torch.from_numpy(tensors[f"{name}/x{len(inputs)}"]))
        for x in inputs:
            x.requires_grad_(x.is_floating_point())
        variables = {f"x{k}": x for k, x in enumerate(inputs)}
        outputs = eval(expression, {"torch": torch, "F": F}, variables)
        if isinstance(outputs, torch.Tensor):
            outputs = [outputs]
        for k, out in enumerate(outputs):
            tensors[f"{name}/out{k}"] = out.detach().numpy()
        roots = [out for out in outputs if out.requires_grad]
        leaves = [k for k, x in enumerate(inputs) if x.requires_grad]
        if roots:
            weights = [output_gradient(out) for out in roots]
            gradients = torch.autograd.grad(roots, [inputs[k] for k in leaves], weights, allow_unused=True)
            for k, g in zip(leaves, gradients):
                if g is not None:
                    tensors[f"{name}/grad{k}"] = g.numpy()
    save(golden, tensors, metadata)


if __name__ == "__main__":
    main(*sys.argv[1:])

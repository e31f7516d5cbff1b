#!/usr/bin/env python3
"""Compares the small CUDA headers of kernels/simt/include with NVIDIA's: values of constants and types of functions.

    headers_agree.py COMPILER INCLUDE_FOLDER...

The folders are where NVIDIA's headers lie. Libraries whose headers are not there are left out. Prints nothing when all
agree; otherwise the compiler's messages, and exits with 1.
"""

import pathlib
import re
import subprocess
import sys

OURS = pathlib.Path(__file__).resolve().parents[2] / "kernels/simt/include"
LIBRARIES = {"cuda_runtime_api": ["driver_types", "library_types"], "cublas_v2": [], "cudnn": [], "nccl": []}


def constants(text):
    """Pairs of enumerators, or macros that are plain numbers, and their values."""
    enumerators = re.findall(r"^\s*(?:typedef enum \{)?\s*(\w+) = (-?\d+)", re.sub(r", (?=\w+ = )", ",\n", text), re.M)
    macros = re.findall(r"^#define (\w+) (0x[0-9a-fA-F]+|\d+)$", text, re.M)
    return [(name, value) for name, value in enumerators + macros if name != "CUDART_VERSION" and name != "CUDNN_MAJOR"]


def declarations(text):
    """The extern "C" part, without default arguments: declared twice, a function must have one type."""
    parts = re.findall(r'^extern "C" \{$.*?^\}', text, re.M | re.S)
    return re.sub(r" = (nullptr|0)(?=[,)])", "", "\n".join(parts))


def check(compiler, folders, library, also):
    texts = [(OURS / f"{name}.h").read_text() for name in [library, *also]]
    lines = [f"#include <{name}.h>" for name in [library, *also]]
    for text in texts:
        lines += [f'static_assert(static_cast<int>({name}) == {value}, "{name}");' for name, value in constants(text)]
    lines += [declarations(text) for text in texts]
    command = [compiler, "-std=c++20", "-x", "c++", "-fsyntax-only", *(f"-isystem{folder}" for folder in folders), "-"]
    return subprocess.run(command, input="\n".join(lines), text=True, check=False).returncode == 0


def main():
    compiler, folders = sys.argv[1], sys.argv[2:]
    present = [name for name in LIBRARIES if any((pathlib.Path(f) / f"{name}.h").is_file() for f in folders)]
    results = [check(compiler, folders, name, LIBRARIES[name]) for name in present]
    sys.exit(0 if all(results) else 1)


if __name__ == "__main__":
    main()

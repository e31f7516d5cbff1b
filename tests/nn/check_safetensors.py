#!/usr/bin/env python3
"""Reads and writes safetensors files with json and numpy alone, by the format's description.

    check_safetensors.py list FILE       prints the tensors, and whether the checksum is right
    check_safetensors.py copy FILE COPY  reads one and writes what was read, in another layout
    check_safetensors.py mlp WEIGHTS IO  adds to IO, which has "x", the "logits" of fc2(relu(fc1(x)))

Exits with 77 ("skipped", for Meson) where there is no numpy. As a module: read(path), write(path, tensors, metadata).
"""

import json
import sys
import zlib

try:
    import numpy
except ImportError:
    print("numpy is not installed", file=sys.stderr)
    sys.exit(77)

DTYPES = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "I64": "<i8", "I32": "<i4", "U8": "u1", "BOOL": "?"}
NAMES = {numpy.dtype(code): name for name, code in DTYPES.items()}
CHECKSUM = "tandem.crc32"


def unique(pairs):
    if len(dict(pairs)) < len(pairs):
        raise ValueError("a key comes twice")
    return dict(pairs)


def read(path):
    """Returns ({name: array}, {metadata}). Checks the layout, and the checksum if there is one."""
    with open(path, "rb") as file:
        content = file.read()
    length = int.from_bytes(content[:8], "little")
    text, data = content[8 : 8 + length], content[8 + length :]
    if text[:1] != b"{":
        raise ValueError("the header does not start with {")
    header = json.loads(text.decode("utf-8"), object_pairs_hook=unique)
    metadata = header.pop("__metadata__", {})

    tensors, end = {}, 0
    for name, entry in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
        begin, next_end = entry["data_offsets"]
        if begin != end:
            raise ValueError(f"{name} begins at {begin}, not {end}")
        end = next_end
        tensors[name] = numpy.frombuffer(data[begin:end], DTYPES[entry["dtype"]]).reshape(entry["shape"])
    if end != len(data):
        raise ValueError(f"tensors end at {end}, the data at {len(data)}")

    if CHECKSUM in metadata:
        mark = f'"{CHECKSUM}":"{metadata[CHECKSUM]}"'.encode()
        zeros = f'"{CHECKSUM}":"00000000"'.encode()
        if f"{zlib.crc32(content.replace(mark, zeros, 1)):08x}" != metadata[CHECKSUM]:
            raise ValueError("the checksum is wrong")
    return {name: tensors[name] for name in header}, metadata


def write(path, tensors, metadata=None):
    """Writes {name: array} in this order, without a checksum, and without aligning anything."""
    header = {"__metadata__": metadata} if metadata else {}
    end, pieces = 0, []
    for name, value in tensors.items():
        array = numpy.ascontiguousarray(value).reshape(numpy.shape(value))
        piece = array.astype(array.dtype.newbyteorder("<")).tobytes()
        header[name] = {"dtype": NAMES[array.dtype], "shape": array.shape, "data_offsets": [end, end + len(piece)]}
        pieces.append(piece)
        end += len(piece)
    text = json.dumps(header).encode()
    with open(path, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text + b"".join(pieces))


def main(command, path, *more):
    tensors, metadata = read(path)
    if command == "copy":
        kept = {key: value for key, value in metadata.items() if key != CHECKSUM}
        write(more[0], tensors, kept)
        return
    if command == "mlp":
        io, _ = read(more[0])
        hidden = numpy.maximum(io["x"] @ tensors["fc1.weight"].T + tensors["fc1.bias"], 0)
        write(more[0], {**io, "logits": hidden @ tensors["fc2.weight"].T + tensors["fc2.bias"]})
        return
    for name, value in tensors.items():
        print(name, value.dtype, value.shape)
    print("checksum", "right" if CHECKSUM in metadata else "absent")


if __name__ == "__main__":
    if (sys.argv[1:2], len(sys.argv)) not in ((["list"], 3), (["copy"], 4), (["mlp"], 4)):
        sys.exit(__doc__)
    main(*sys.argv[1:])

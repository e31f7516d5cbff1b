"""uncompilable.cpp does not compile, for the reasons that it names.

The compiler and its options are in TANDEM_COMPILER.
"""

import os
import pathlib
import re
import shlex
import subprocess
import sys

SOURCE = pathlib.Path(__file__).resolve().with_name("uncompilable.cpp")

command = [*shlex.split(os.environ["TANDEM_COMPILER"]), "-std=c++20", "-fsyntax-only", str(SOURCE)]
run = subprocess.run(command, capture_output=True, text=True)
missing = [text for text in re.findall(r"// wanted: (.*)", SOURCE.read_text()) if text not in run.stderr]
for text in missing:
    print(f"the compiler does not say: {text}")
if run.returncode == 0 or missing:
    print(run.stderr[-5000:])
    sys.exit(1)
print("every reason was given")

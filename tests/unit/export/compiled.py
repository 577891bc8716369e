"""net.c under the host's compiler, with everything that finds mistakes switched on."""

import shutil
import subprocess

import numpy as np
import pytest

needs_gcc = pytest.mark.skipif(shutil.which("gcc") is None, reason="gcc is not installed")
STRICT = ("-std=c99", "-pedantic", "-Wall", "-Wextra", "-Werror", "-O1")
SANITIZED = (*STRICT, "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")
MAIN = """
#include <stdio.h>
#include "net.h"
int main(void)
{
    static net_input input[NET_INPUTS];
    static float output[NET_OUTPUTS];
    while (fread(input, sizeof input, 1, stdin) == 1) {
        net_run(input, output);
        fwrite(output, sizeof output, 1, stdout);
    }
    return 0;
}
"""


def outputs_of(folder, inputs):
    """What the compiled network gives for each input: floats, or bytes if it takes bytes."""
    (folder / "main.c").write_text(MAIN)
    sources = [folder / "main.c", folder / "net.c"]
    subprocess.run(["gcc", *SANITIZED, *sources, "-o", folder / "run", "-lm"], check=True)
    done = subprocess.run(
        [folder / "run"], input=np.ascontiguousarray(inputs).tobytes(), capture_output=True
    )
    assert done.returncode == 0, done.stderr.decode()
    assert done.stderr == b""
    return np.frombuffer(done.stdout, np.float32).reshape(len(inputs), -1)

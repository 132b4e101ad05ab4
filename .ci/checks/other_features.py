#!/usr/bin/env python3
"""Another crate's features cannot change the exporters: a program with every client of opentelemetry-otlp switched on
exports over both protocols into the strict sink. Run by .ci/run with the Python of .venv, from anywhere."""
import contextlib, json, pathlib, shutil, subprocess

from strict_sink import ROOT, Sink

PACKAGE = ROOT / ".ci/other-features"

# The same versions as the crate's own.
shutil.copy(ROOT / "Cargo.lock", PACKAGE)
subprocess.run(["cargo", "build", "--quiet"], cwd=PACKAGE, check=True)
metadata = subprocess.run(["cargo", "metadata", "--format-version", "1", "--no-deps"], cwd=PACKAGE, stdout=subprocess.PIPE, check=True)
program = pathlib.Path(json.loads(metadata.stdout)["target_directory"]) / "debug/other-features"
with contextlib.ExitStack() as stack:
    sink = Sink(stack)
    for protocol, port in (("grpc", sink.grpc), ("http/protobuf", sink.http)):
        done = subprocess.run([program, protocol, f"http://127.0.0.1:{port}"], stderr=subprocess.PIPE, text=True, timeout=60)
        assert done.returncode == 0 and not done.stderr, done.stderr
    spans = sum(1 for _ in sink.spans())
    assert spans == 12, spans
print("12 spans of 12, over both protocols")

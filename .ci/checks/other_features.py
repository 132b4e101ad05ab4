#!/usr/bin/env python3
"""Another crate's features cannot change the exporters: a program with every client of opentelemetry-otlp switched on
exports over both protocols into the strict sink. Run by .ci/run with the Python of .venv, from anywhere."""
import json, os, pathlib, shutil, socket, subprocess, sys, tempfile, time

ROOT = pathlib.Path(__file__).resolve().parents[2]
SHARED = pathlib.Path(os.environ.get("NEMO_GYM_SHARED", ROOT / "../shared"))


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


# The same versions as the crate's own.
shutil.copy(ROOT / "Cargo.lock", ROOT / ".ci/other-features/Cargo.lock")
subprocess.run(["cargo", "build", "--quiet"], cwd=ROOT / ".ci/other-features", check=True)
metadata = subprocess.run(["cargo", "metadata", "--format-version", "1", "--no-deps"], cwd=ROOT / ".ci/other-features",
                          stdout=subprocess.PIPE, check=True)
program = pathlib.Path(json.loads(metadata.stdout)["target_directory"]) / "debug/other-features"
with tempfile.TemporaryDirectory() as out:
    grpc, http = free_port(), free_port()
    sink = subprocess.Popen([sys.executable, SHARED / "otlp/otlp_sink.py", "--grpc", str(grpc), "--http", str(http), "--out", out])
    try:
        while not pathlib.Path(out, "ready").exists():
            time.sleep(0.05)
        for protocol, port in (("grpc", grpc), ("http/protobuf", http)):
            done = subprocess.run([program, protocol, f"http://127.0.0.1:{port}"], stderr=subprocess.PIPE, text=True, timeout=60)
            assert done.returncode == 0 and not done.stderr, done.stderr
        lines = pathlib.Path(out, "traces.jsonl").read_text().splitlines()
        spans = [s for line in lines for r in json.loads(line)["resourceSpans"] for c in r["scopeSpans"] for s in c["spans"]]
        assert len(spans) == 12, len(spans)
    finally:
        sink.kill()
        sink.wait()
print("12 spans of 12, over both protocols")

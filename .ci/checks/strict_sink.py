"""The strict OTLP receiver (../shared/otlp) as a child process, for the checks beside this file."""
import contextlib, json, os, pathlib, signal, socket, subprocess, sys, tempfile, time

ROOT = pathlib.Path(__file__).resolve().parents[2]
SHARED = pathlib.Path(os.environ.get("NEMO_GYM_SHARED", ROOT / "../shared"))


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def wait_until(condition, what, seconds=30):
    end = time.monotonic() + seconds
    while not (result := condition()):
        if time.monotonic() > end:
            sys.exit(f"not within {seconds} s: {what}")
        time.sleep(0.05)
    return result


@contextlib.contextmanager
def process(*command, **options):
    child = subprocess.Popen([str(part) for part in command], **options)
    try:
        yield child
    finally:
        child.kill()
        child.wait()


def attributes(holder):
    return {a["key"]: next(iter(a["value"].values())) for a in holder.get("attributes", [])}


class Sink:
    """Listens on `grpc` and `http`, and writes what it gets into `out`, until the stack is left."""

    def __init__(self, stack, python=sys.executable):
        self.out = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory()))
        self.grpc, self.http = free_port(), free_port()
        script = SHARED / "otlp/otlp_sink.py"
        self.process = stack.enter_context(process(python, script, "--grpc", self.grpc, "--http", self.http, "--out", self.out))
        wait_until(lambda: (self.out / "ready").exists() or self.process.poll() is not None, "the receiver is ready", 60)
        if self.process.poll() is not None:
            sys.exit("the receiver did not start")

    def end(self):
        """Everything received is written when this returns."""
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(timeout=30)

    def requests(self, kind):
        path = self.out / f"{kind}.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def spans(self):
        """(service, span) of every span received."""
        for request in self.requests("traces"):
            for resource in request["resourceSpans"]:
                service = attributes(resource["resource"])["service.name"]
                for scope in resource["scopeSpans"]:
                    yield from ((service, span) for span in scope["spans"])

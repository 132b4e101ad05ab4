#!/usr/bin/env python3
"""The example servers export through a real collector, rotel, into the strict sink: gRPC and HTTP in, gRPC and HTTP out.

What arrives behind the hop must be what arrives without it, item by item; also when the collector starts after the servers.
Run by .ci/run with the Python of .venv, from anywhere."""
import collections, contextlib, importlib.util, json, os, pathlib, signal, socket, subprocess, tempfile, time, urllib.request

from strict_sink import ROOT, Sink, attributes, free_port, process, wait_until

ROLLOUTS = 3
BODY = {
    "responses_create_params": {
        "input": [{"role": "user", "content": "weather in sf?"}],
        "tools": [
            {
                "name": "get_weather",
                "type": "function",
                "description": "",
                "strict": True,
                "parameters": {
                    "type": "object",
                    "properties": {"city": {"type": "string"}},
                    "required": ["city"],
                    "additionalProperties": False,
                },
            }
        ],
    }
}


def listens(port):
    with socket.socket() as s:
        return s.connect_ex(("127.0.0.1", port)) == 0


def served(sink):
    """Requests per service and route, by the newest point of each series."""
    newest = {}
    for request in sink.requests("metrics"):
        for resource in request["resourceMetrics"]:
            service = attributes(resource["resource"])["service.name"]
            for scope in resource["scopeMetrics"]:
                for metric in scope["metrics"]:
                    if metric["name"] == "http.server.request.duration":
                        for point in metric["histogram"]["dataPoints"]:
                            series = (service, attributes(point).get("http.route"))
                            newest[series] = int(point["count"])
    return newest


@contextlib.contextmanager
def rotel(sink, ports, out):
    package = importlib.util.find_spec("rotel").submodule_search_locations[0]
    target = sink.grpc if out == "grpc" else sink.http
    with tempfile.TemporaryDirectory() as directory, process(
        pathlib.Path(package) / "rotel-agent", "start",
        "--pid-file", f"{directory}/pid", "--log-file", f"{directory}/log",
        "--otlp-grpc-endpoint", f"127.0.0.1:{ports['grpc']}", "--otlp-http-endpoint", f"127.0.0.1:{ports['http/protobuf']}",
        "--exporter", "otlp", "--otlp-exporter-endpoint", f"http://127.0.0.1:{target}", "--otlp-exporter-protocol", out,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    ):
        wait_until(lambda: all(listens(port) for port in ports.values()), "rotel listens")
        yield


class Servers:
    """The three example servers."""

    def __init__(self, stack, examples, endpoint, protocol):
        self.running = []
        environment = {
            **os.environ,
            "NEMO_GYM_OTEL_ENABLED": "1",
            "NEMO_GYM_OTEL_RUN_ID": "hop",
            "NEMO_GYM_OTEL_SPAN_GROUPS": "all",
            "OTEL_EXPORTER_OTLP_ENDPOINT": endpoint,
            "OTEL_EXPORTER_OTLP_PROTOCOL": protocol,
            "OTEL_BSP_SCHEDULE_DELAY": "300",
            "OTEL_METRIC_EXPORT_INTERVAL": "1000",
        }

        def start(name, *arguments):
            child = stack.enter_context(
                process(examples / name, *arguments, "--port", "0", env=environment,
                        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))
            self.running.append(child)
            prefix = "listening on "
            line = next(line for line in child.stdout if line.startswith(prefix))
            return line.removeprefix(prefix).strip()

        resources, model = start("resources_server"), start("model_server")
        self.agent = start("agent_server", "--model-url", model, "--resources-url", resources)

    def roll(self, index):
        body = json.dumps({**BODY, "_ng_task_index": index, "_ng_rollout_index": 0}).encode()
        request = urllib.request.Request(f"{self.agent}/run", body, {"content-type": "application/json"})
        with urllib.request.urlopen(request, timeout=30) as response:
            assert json.load(response)["reward"] == 1.0

    def end(self):
        """Ends all with SIGTERM; what they said on stderr."""
        for child in self.running:
            child.send_signal(signal.SIGTERM)
        said = []
        for child in self.running:
            _, stderr = child.communicate(timeout=15)
            assert child.returncode == 0, (child.returncode, stderr)
            # A busy machine makes the runtime monitor speak.
            said += [line for line in stderr.splitlines() if "tokio runtime:" not in line]
        return said


def shapes(sink):
    """Each trace as its spans' (service, name, parent's name), counted; "?" for a parent that is not there (yet)."""
    traces = collections.defaultdict(dict)
    total = 0
    for service, span in sink.spans():
        traces[span["traceId"]][span["spanId"]] = (service, span)
        total += 1
    assert total == sum(map(len, traces.values())), "a span arrived twice"
    for spans in traces.values():
        shape = collections.Counter()
        for service, span in spans.values():
            parent = span.get("parentSpanId")
            parent_name = spans[parent][1]["name"] if parent in spans else "?" if parent else None
            shape[service, span["name"], parent_name] += 1
        yield shape


def check(sink, expected, case):
    """The rollouts' traces are all there and alike, and the metrics agree."""

    def complete():
        found = list(shapes(sink)) if sink.requests("traces") else []
        rollouts = [shape for shape in found if any(name == "POST /run" for _, name, _ in shape)]
        whole = all(parent != "?" for shape in rollouts for _, _, parent in shape)
        alike = rollouts == [expected or rollouts[0]] * ROLLOUTS if rollouts else False
        return rollouts if whole and alike else None

    rollouts = wait_until(complete, f"{case}: {ROLLOUTS} traces as without the hop")
    shape = rollouts[0]
    assert len({service for service, _, _ in shape}) == 3, case
    wait_until(lambda: sum(n for (_, route), n in served(sink).items() if route == "/run") == ROLLOUTS,
               f"{case}: {ROLLOUTS} requests to /run in the metrics")
    print(f"{case}: {ROLLOUTS} traces of {sum(shape.values())} spans, {sum(served(sink).values())} requests in the metrics")
    return shape


def main():
    build = subprocess.run(
        ["cargo", "build", "--locked", "--all-features", "--examples", "--message-format", "json", "--quiet"],
        cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
    executables = [m["executable"] for m in map(json.loads, build.stdout.splitlines()) if m.get("executable")]
    examples = pathlib.Path(executables[0]).parent

    expected = None
    for protocol in ("grpc", "http/protobuf"):
        with contextlib.ExitStack() as stack:
            sink = Sink(stack)
            port = sink.grpc if protocol == "grpc" else sink.http
            servers = Servers(stack, examples, f"http://127.0.0.1:{port}", protocol)
            for index in range(ROLLOUTS):
                servers.roll(index)
            assert servers.end() == []
            expected = check(sink, expected, f"{protocol}, no hop")
        for out in ("grpc", "http"):
            for late in (False, True):
                with contextlib.ExitStack() as stack:
                    sink = Sink(stack)
                    ports = {"grpc": free_port(), "http/protobuf": free_port()}
                    if not late:
                        stack.enter_context(rotel(sink, ports, out))
                    servers = Servers(stack, examples, f"http://127.0.0.1:{ports[protocol]}", protocol)
                    for index in range(ROLLOUTS):
                        servers.roll(index)
                    if late:
                        time.sleep(2)
                        stack.enter_context(rotel(sink, ports, out))
                        check(sink, expected, f"{protocol} -> rotel -> {out}, rotel last")
                        said = servers.end()
                        assert len(said) <= 3 and all("lost" not in line for line in said), said
                    else:
                        assert servers.end() == []
                        check(sink, expected, f"{protocol} -> rotel -> {out}")


main()

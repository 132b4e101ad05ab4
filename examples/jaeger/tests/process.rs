//! Ports, pages, and the end.

mod support;

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use support::{Jaeger, client, jaeger};

fn run(arguments: &[&str]) -> (Option<i32>, String, String) {
    let Output { status, stdout, stderr } = jaeger(arguments).output().unwrap();
    assert_eq!(status.signal(), None);
    (status.code(), String::from_utf8(stdout).unwrap(), String::from_utf8(stderr).unwrap())
}

#[test]
fn default_ports_and_busy_ones() {
    for (port, others) in [(4317, vec![]), (4318, vec!["--grpc", "0"]), (10188, vec!["--grpc", "0", "--http", "0"])] {
        // Ours or somebody else's: it is busy.
        let _busy = TcpListener::bind(("127.0.0.1", port));
        let (status, stdout, stderr) = run(&others);
        assert_eq!((status, stdout.as_str()), (Some(1), ""));
        assert!(stderr.starts_with(&format!("jaeger: cannot listen on 127.0.0.1:{port}: ")), "{stderr}");
        assert_eq!(stderr.lines().count(), 1, "{stderr}");
    }
}

#[test]
fn arguments() {
    let (status, stdout, _) = run(&["--help"]);
    assert_eq!(status, Some(0));
    assert!(stdout.starts_with("usage: jaeger"), "{stdout}");
    for (wrong, said) in
        [(&["--port", "1"][..], "--port"), (&["--ui"], "--ui needs"), (&["--ui", "70000"], "--ui needs")]
    {
        let (status, _, stderr) = run(wrong);
        assert_eq!(status, Some(2));
        assert!(stderr.contains(said), "{stderr}");
    }
}

#[test]
fn listens_on_the_loopback_interface_only() {
    let jaeger = Jaeger::start();
    for url in [&jaeger.grpc, &jaeger.http, &jaeger.ui] {
        let address: SocketAddr = url.strip_prefix("http://").unwrap().parse().unwrap();
        assert!(TcpStream::connect(address).is_ok());
        // A listener on every interface would answer here as well.
        assert!(TcpStream::connect(("127.0.0.2", address.port())).is_err());
    }
}

#[tokio::test]
async fn serves_the_application() {
    let jaeger = Jaeger::start();
    for path in ["/", "/search", "/trace/01"] {
        let answer = client().get(format!("{}{path}", jaeger.ui)).send().await.unwrap();
        assert_eq!(answer.status(), 200);
        let page = answer.text().await.unwrap();
        assert!(page.contains("<title>Jaeger UI</title>") && page.ends_with("</html>\n"), "{page}");
        assert!(page.contains("<head><script>localStorage.spanNameColumnWidth ??="), "{page}");
        let script = page.split('"').find(|text| text.starts_with("./static/index-")).unwrap();
        let script = client().get(format!("{}/{}", jaeger.ui, &script[2..])).send().await.unwrap();
        assert_eq!(script.status(), 200);
    }
}

#[test]
fn ends_at_once_with_connections_open() {
    for signal in ["INT", "TERM"] {
        let mut jaeger = Jaeger::start();
        let open =
            [&jaeger.grpc, &jaeger.http, &jaeger.ui].map(|url| TcpStream::connect(&url["http://".len()..]).unwrap());
        let asked = Instant::now();
        assert!(Command::new("kill").args(["-s", signal, &jaeger.child.id().to_string()]).status().unwrap().success());
        assert!(jaeger.child.wait().unwrap().success());
        assert!(asked.elapsed() < Duration::from_secs(2));
        drop(open);
    }
}

//! A client and a server that speak different protocols: said once, with what to do (casebook EXP-04).

mod otlp_support;

use std::io::{Read, Write};
use std::net::TcpListener;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use nemo_gym_telemetry::Telemetry;
use opentelemetry::trace::{Tracer, TracerProvider};
use otlp_support::{Collector, Messages, PROTOCOLS, Speaks, environment};

/// Exports to `endpoint` until something was lost, several batches of it; what was said of `authority`.
fn lose(endpoint: &str, protocol: &str, authority: &str) -> Vec<String> {
    let messages = Messages::capture();
    let mut environment = environment(endpoint, protocol);
    environment.set("OTEL_EXPORTER_OTLP_TIMEOUT", "1000");
    environment.set("OTEL_METRICS_EXPORTER", "none");
    let telemetry = Telemetry::builder().with_environment(environment).build();
    for _ in 0..3 {
        drop(telemetry.tracer_provider().tracer("test").start("span"));
        futures_executor(telemetry.flush());
    }
    let report = telemetry.shutdown_blocking(Duration::from_secs(3));
    assert_eq!((report.delivery.spans.exported, report.delivery.spans.lost_total()), (0, 3), "{report:?}");
    messages.lines_with(authority)
}

fn futures_executor<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(future)
}

#[test]
fn grpc_to_an_http1_port() {
    let collector = Collector::speaking(Speaks::Http1);
    let said = lose(&collector.url(), "grpc", &collector.address.to_string());
    assert_eq!(said.len(), 1, "{said:?}");
    assert!(said[0].contains("http/protobuf"), "{said:?}");
}

/// Real HTTP/1 servers answer the HTTP/2 preface with a status line of their own.
#[test]
fn grpc_to_a_server_that_answers_in_http1() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let _ = stream.read(&mut [0; 256]);
            let _ = stream.write_all(b"HTTP/1.1 505 HTTP Version Not Supported\r\nContent-Length: 0\r\n\r\n");
        }
    });
    let said = lose(&format!("http://{address}"), "grpc", &address.to_string());
    assert_eq!(said.len(), 1, "{said:?}");
    assert!(said[0].contains("http/protobuf"), "{said:?}");
}

#[test]
fn http_to_a_grpc_port() {
    let collector = Collector::speaking(Speaks::Http2);
    let said = lose(&collector.url(), "http/protobuf", &collector.address.to_string());
    assert!(said.len() == 1 && said[0].contains("PROTOCOL=grpc"), "{said:?}");
}

/// The collector of the Python packages answers HTTP/2 with a page, without a status line.
#[test]
fn grpc_to_a_server_that_answers_with_a_page() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let _ = stream.read(&mut [0; 256]);
            let _ = stream.write_all(b"<!DOCTYPE HTML>\n<html>");
        }
    });
    let said = lose(&format!("http://{address}"), "grpc", &address.to_string());
    assert!(said.len() == 1 && said[0].contains("http/protobuf"), "{said:?}");
}

/// Google's gRPC servers speak before they are spoken to.
#[test]
fn http_to_a_server_that_speaks_http2_first() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let _ = stream.write_all(&[0, 0, 0, 4, 0, 0, 0, 0, 0]);
            let _ = stream.read(&mut [0; 256]);
        }
    });
    let said = lose(&format!("http://{address}"), "http/protobuf", &address.to_string());
    assert!(said.len() == 1 && said[0].contains("PROTOCOL=grpc"), "{said:?}");
}

/// gRPC servers answer HTTP/1 with the frames that open every HTTP/2 connection.
#[test]
fn http_to_a_server_that_answers_in_http2() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let _ = stream.read(&mut [0; 256]);
            let settings = [0, 0, 0, 4, 0, 0, 0, 0, 0];
            let goaway = [0, 0, 8, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1];
            let _ = stream.write_all(&[settings.as_slice(), &goaway].concat());
        }
    });
    let said = lose(&format!("http://{address}"), "http/protobuf", &address.to_string());
    assert_eq!(said.len(), 1, "{said:?}");
    assert!(said[0].contains("PROTOCOL=grpc"), "{said:?}");
}

#[test]
fn https_never_starts_in_clear() {
    for protocol in PROTOCOLS {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let (sender, first_bytes) = mpsc::channel();
        thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                let mut bytes = [0; 3];
                let _ = stream.read_exact(&mut bytes);
                let _ = sender.send(bytes);
                let _ = stream.write_all(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n");
            }
        });
        let said = lose(&format!("https://{address}"), protocol, &address.to_string());
        assert_eq!(said.len(), 1, "{protocol}: {said:?}");
        assert!(said[0].contains("does not speak TLS"), "{protocol}: {said:?}");
        let bytes: Vec<_> = first_bytes.try_iter().collect();
        assert!(!bytes.is_empty() && bytes.iter().all(|bytes| bytes[0] == 0x16), "{protocol}: {bytes:?}");
    }
}

#[test]
fn clear_text_to_a_tls_port() {
    for protocol in PROTOCOLS {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                let _ = stream.read(&mut [0; 256]);
                // Alert, protocol version.
                let _ = stream.write_all(&[0x15, 3, 3, 0, 2, 2, 70]);
            }
        });
        let said = lose(&format!("http://{address}"), protocol, &address.to_string());
        assert_eq!(said.len(), 1, "{protocol}: {said:?}");
        assert!(said[0].contains("https://"), "{protocol}: {said:?}");
    }
}

/// A redirect is not followed: it could lead data and credentials anywhere.
#[test]
fn redirects_are_not_followed() {
    let elsewhere = Collector::start();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let location = elsewhere.url();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let _ = stream.read(&mut [0; 4096]);
            let _ =
                write!(stream, "HTTP/1.1 307 Temporary Redirect\r\nLocation: {location}\r\nContent-Length: 0\r\n\r\n");
        }
    });
    let said = lose(&format!("http://{address}"), "http/protobuf", &address.to_string());
    assert!(said.len() == 1 && said[0].contains("307"), "{said:?}");
    assert!(elsewhere.look(|r| r.calls.is_empty()));
}

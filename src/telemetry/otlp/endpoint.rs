//! From the endpoint as somebody wrote it to the URL that is used, or one line that says why not.
//!
//! `url` follows browsers, who repair almost anything: `http:///v1/traces` becomes host `v1`, line
//! breaks vanish, `http://4318` becomes the address 0.0.16.222. Telemetry must not go to a place that
//! nobody named, so such texts are refused before or after parsing.

use std::net::Ipv4Addr;

use url::{Host, Url};

use super::Signal;
use crate::config::settings::{OtlpProtocol, OtlpSettings};

/// Where a signal goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Target {
    pub url: Url,
    /// `host:port`: all that messages may show of an endpoint.
    pub authority: String,
    /// The variable or field that named it.
    pub source: &'static str,
}

impl Target {
    /// Resolves the endpoint of a signal, with what has to be said about it. An error is the reason why
    /// the signal cannot be exported; it names the variable and shows no part of the URL but its scheme.
    pub(super) fn resolve(signal: Signal, settings: &OtlpSettings) -> Result<(Self, Vec<String>), String> {
        let grpc = settings.protocol == OtlpProtocol::Grpc;
        let Some(endpoint) = &settings.endpoint else {
            let port = if grpc { 4317 } else { 4318 };
            let path = if grpc { "/" } else { signal.http_path() };
            let authority = format!("localhost:{port}");
            let url = Url::parse(&format!("http://{authority}{path}")).map_err(|error| error.to_string())?;
            return Ok((Self { url, authority, source: "the default endpoint" }, Vec::new()));
        };
        let source = endpoint.source;
        let refuse = |why: &str| format!("{source} {why}");
        let mut notes = Vec::new();

        let mut text = endpoint.text.trim().to_owned();
        if text.chars().any(|c| c.is_whitespace() || c.is_control() || c == '\\') {
            return Err(refuse("has white space or a backslash inside"));
        }
        match text.split_once("://").filter(|(scheme, _)| !scheme.contains(['/', '?', '#'])) {
            Some((_, rest)) if rest.starts_with(['/', '?', '#']) || rest.is_empty() => {
                return Err(refuse("names no host"));
            }
            Some(_) => {}
            None if grpc && !text.starts_with(['/', '?', '#']) && !looks_like_scheme_typo(&text) => {
                // OTLP exporter specification: without a scheme, OTEL_EXPORTER_OTLP_INSECURE decides.
                if !settings.insecure {
                    notes.push(format!(
                        "{source} has no scheme, so TLS is used; write http:// before it, or set \
                         OTEL_EXPORTER_OTLP_INSECURE=true, for a connection in clear"
                    ));
                }
                text = format!("{}://{text}", if settings.insecure { "http" } else { "https" });
            }
            None => return Err(refuse("has no scheme; it must start with http:// or https://")),
        }

        let mut url = Url::parse(&text).map_err(|error| refuse(&format!("is not a URL ({error})")))?;
        if !matches!(url.scheme(), "http" | "https") {
            return Err(refuse(&format!("has the unknown scheme {}; use http or https", url.scheme())));
        }
        if is_unintended_address(&text, &url) {
            return Err(refuse("has a number where a host must be"));
        }
        if url.scheme() == "https" && cfg!(not(feature = "tls")) {
            return Err(refuse("asks for https, which needs the cargo feature `tls` of nemo-gym-telemetry"));
        }
        url.set_fragment(None);

        if grpc {
            if !matches!(url.path(), "" | "/") || url.query().is_some() {
                notes.push(format!("the path in {source} means nothing to gRPC and is left out"));
            }
            if !url.username().is_empty() || url.password().is_some() {
                notes.push(format!(
                    "the user name in {source} means nothing to gRPC and is left out; send it as a header"
                ));
                let _ = url.set_username("");
                let _ = url.set_password(None);
            }
            url.set_path("/");
            url.set_query(None);
        } else if !endpoint.signal_specific {
            let (path, corrected) = join_path(url.path(), signal);
            if corrected {
                notes.push(format!(
                    "{source} is a base URL to which each signal's path is added; the signal path at its end is \
                     left out"
                ));
            }
            url.set_path(&path);
        }
        let authority = authority_of(&url);
        Ok((Self { url, authority, source }, notes))
    }

    /// Whether the collector is on this very machine, where no proxy can stand between.
    #[cfg(any(feature = "otlp-http", test))]
    pub(super) fn is_loopback(&self) -> bool {
        match self.url.host() {
            Some(Host::Domain(name)) => {
                let name = name.trim_end_matches('.');
                name == "localhost" || name.ends_with(".localhost")
            }
            Some(Host::Ipv4(address)) => address.is_loopback() || address.is_unspecified(),
            Some(Host::Ipv6(address)) => {
                address.is_loopback()
                    || address.is_unspecified()
                    || address.to_ipv4_mapped().is_some_and(|mapped| mapped.is_loopback())
            }
            None => false,
        }
    }

    #[cfg(any(feature = "otlp-grpc", feature = "tls"))]
    pub(super) fn is_tls(&self) -> bool {
        self.url.scheme() == "https"
    }
}

/// The base's path and the signal's, joined by exactly one slash. A signal path that already stands at
/// the base's end is taken off first; the flag tells.
fn join_path(base: &str, signal: Signal) -> (String, bool) {
    let base = base.trim_end_matches('/');
    let stripped = [Signal::Traces, Signal::Metrics, Signal::Logs]
        .into_iter()
        .find_map(|known| base.strip_suffix(known.http_path()));
    let corrected = stripped.is_some();
    let base = stripped.unwrap_or(base).trim_end_matches('/');
    (format!("{base}{}", signal.http_path()), corrected)
}

/// `http:/host`, `http:host:4318`, `https/host`: a scheme was meant but not written.
fn looks_like_scheme_typo(text: &str) -> bool {
    let lower = text.to_ascii_lowercase();
    ["http:", "https:", "http/", "https/", "grpc:", "grpcs:"].iter().any(|typo| lower.starts_with(typo))
}

/// The parser made an IPv4 address of something that is not written as one.
fn is_unintended_address(text: &str, url: &Url) -> bool {
    let Some(Host::Ipv4(_)) = url.host() else { return false };
    let Some((_, rest)) = text.split_once("://") else { return false };
    let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
    let host_and_port = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
    let host = host_and_port.rsplit_once(':').map_or(host_and_port, |(host, _)| host);
    host.parse::<Ipv4Addr>().is_err()
}

fn authority_of(url: &Url) -> String {
    let host = url.host_str().unwrap_or_default();
    match url.port_or_known_default() {
        Some(port) => format!("{host}:{port}"),
        None => host.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::settings::{OtlpEndpoint, Settings};

    const SOURCE: &str = "OTEL_EXPORTER_OTLP_ENDPOINT";

    fn settings(text: &str, protocol: OtlpProtocol, signal_specific: bool) -> OtlpSettings {
        let endpoint = OtlpEndpoint { text: text.to_owned(), source: SOURCE, signal_specific };
        OtlpSettings { endpoint: Some(endpoint), protocol, ..Settings::default().otlp_traces }
    }

    fn http(text: &str) -> Result<(Target, Vec<String>), String> {
        Target::resolve(Signal::Traces, &settings(text, OtlpProtocol::HttpProtobuf, false))
    }

    fn grpc(text: &str) -> Result<(Target, Vec<String>), String> {
        Target::resolve(Signal::Traces, &settings(text, OtlpProtocol::Grpc, false))
    }

    #[test]
    fn base_urls_get_the_signal_path() {
        for (base, url, notes) in [
            ("http://h:4318", "http://h:4318/v1/traces", 0),
            ("http://h:4318/", "http://h:4318/v1/traces", 0),
            ("http://h:4318//", "http://h:4318/v1/traces", 0),
            ("http://h:4318/base", "http://h:4318/base/v1/traces", 0),
            ("http://h:4318/base/", "http://h:4318/base/v1/traces", 0),
            ("http://h:4318/a/b//", "http://h:4318/a/b/v1/traces", 0),
            ("  http://h:4318\t", "http://h:4318/v1/traces", 0),
            ("HTTP://H:4318", "http://h:4318/v1/traces", 0),
            ("http://[::1]:4318", "http://[::1]:4318/v1/traces", 0),
            ("http://h", "http://h/v1/traces", 0),
            ("http://h/base?key=v", "http://h/base/v1/traces?key=v", 0),
            ("http://h/base#part", "http://h/base/v1/traces", 0),
            ("http://u:p@h:4318", "http://u:p@h:4318/v1/traces", 0),
            ("http://h:4318/v1/traces", "http://h:4318/v1/traces", 1),
            ("http://h:4318/v1/traces/", "http://h:4318/v1/traces", 1),
            ("http://h:4318/base/v1/metrics", "http://h:4318/base/v1/traces", 1),
        ] {
            let (target, said) = http(base).unwrap();
            assert_eq!((target.url.as_str(), said.len()), (url, notes), "{base}: {said:?}");
        }
    }

    #[test]
    fn every_signal_gets_its_own_path() {
        for (signal, path) in
            [(Signal::Traces, "/b/v1/traces"), (Signal::Metrics, "/b/v1/metrics"), (Signal::Logs, "/b/v1/logs")]
        {
            let settings = settings("http://h:4318/b", OtlpProtocol::HttpProtobuf, false);
            assert_eq!(Target::resolve(signal, &settings).unwrap().0.url.path(), path);
        }
    }

    #[test]
    fn signal_urls_stay_as_they_are() {
        for (text, url) in [
            ("http://h:4318/custom", "http://h:4318/custom"),
            ("http://h:4318/custom/", "http://h:4318/custom/"),
            ("http://h:4318", "http://h:4318/"),
            ("http://h:4318/v1/traces/v1/traces", "http://h:4318/v1/traces/v1/traces"),
        ] {
            let settings = settings(text, OtlpProtocol::HttpProtobuf, true);
            let (target, said) = Target::resolve(Signal::Traces, &settings).unwrap();
            assert_eq!((target.url.as_str(), said.len()), (url, 0));
        }
    }

    #[test]
    fn what_cannot_be_meant_is_refused_in_one_line_that_names_the_variable() {
        for text in [
            "localhost:4318",
            "h",
            "127.0.0.1:4318",
            "http:/h:4318",
            "http:h:4318",
            "http:\\\\h:4318",
            "http//h:4318",
            "//h:4318",
            "/v1/traces",
            "http://",
            "http:///v1/traces",
            "http://:4318",
            "http://?x",
            "http://h :4318",
            "http://h\n.example:4318",
            "http://h:43 18",
            "http://h:99999",
            "http://h:port",
            "http://4318",
            "http://127.1:4318",
            "http://0x7f000001:4318",
            "http://[::1:4318",
            "ftp://h:4318",
            "grpc://h:4317",
            "unix:///run/otlp.sock",
            "file:///etc/passwd",
            "htttp://h:4318",
        ] {
            let error = http(text).expect_err(text);
            assert!(error.starts_with(SOURCE) && !error.contains('\n'), "{text}: {error}");
        }
    }

    #[test]
    fn refusals_and_notes_show_nothing_secret() {
        for text in ["http://user:s3cret@h:99999", "s3cret:s3cret@h:1", "ftp://user:s3cret@h?token=s3cret", "s3cret"] {
            for result in [http(text), grpc(text)] {
                let said = match result {
                    Ok((target, notes)) => {
                        assert!(!target.authority.contains("s3cret@"), "{}", target.authority);
                        notes.join("\n")
                    }
                    Err(error) => error,
                };
                assert!(!said.contains("s3cret"), "{text}: {said}");
            }
        }
    }

    #[test]
    fn grpc_takes_host_and_port() {
        let tls = cfg!(feature = "tls");
        for (text, url, notes) in [
            ("http://h:4317", "http://h:4317/", 0),
            ("http://h:4317/", "http://h:4317/", 0),
            ("http://h:4317/v1/traces", "http://h:4317/", 1),
            ("http://user:pass@h:4317", "http://h:4317/", 1),
            ("http://h:4317?x=y", "http://h:4317/", 1),
        ] {
            let (target, said) = grpc(text).unwrap();
            assert_eq!((target.url.as_str(), said.len()), (url, notes), "{text}: {said:?}");
        }
        for text in ["http:/h:4317", "grpc:h", "grpc://h:4317", "http///h", "/h:4317", "http://:4317"] {
            assert!(grpc(text).is_err(), "{text}");
        }
        // Without a scheme OTEL_EXPORTER_OTLP_INSECURE decides, as the specification says.
        match grpc("h:4317") {
            Ok((target, said)) => assert!(tls && target.url.as_str() == "https://h:4317/" && said.len() == 1),
            Err(error) => assert!(!tls && error.contains("`tls`"), "{error}"),
        }
        let insecure = OtlpSettings { insecure: true, ..settings("h:4317", OtlpProtocol::Grpc, false) };
        assert_eq!(Target::resolve(Signal::Traces, &insecure).unwrap().0.url.as_str(), "http://h:4317/");
    }

    #[test]
    fn defaults_are_the_specification_s() {
        let default = Settings::default().otlp_traces;
        let http = OtlpSettings { protocol: OtlpProtocol::HttpProtobuf, ..default.clone() };
        assert_eq!(Target::resolve(Signal::Logs, &default).unwrap().0.url.as_str(), "http://localhost:4317/");
        assert_eq!(Target::resolve(Signal::Logs, &http).unwrap().0.url.as_str(), "http://localhost:4318/v1/logs");
    }

    #[test]
    fn https_needs_the_feature() {
        assert_eq!(http("https://h:4318").is_ok(), cfg!(feature = "tls"));
        assert_eq!(grpc("https://h:4317").is_ok(), cfg!(feature = "tls"));
    }

    #[test]
    fn loopback_is_recognised() {
        for (text, loopback) in [
            ("http://localhost:1", true),
            ("http://LOCALHOST.:1", true),
            ("http://127.9.9.9:1", true),
            ("http://[::1]:1", true),
            ("http://[::ffff:127.0.0.1]:1", true),
            ("http://localhost.example:1", false),
            ("http://10.0.0.1:1", false),
        ] {
            assert_eq!(http(text).unwrap().0.is_loopback(), loopback, "{text}");
        }
    }
}

//! The example that the W3C validation suite runs against, driven the same way: a request with trace
//! headers over a plain socket, then a look at the calls that it makes.

mod e2e;
mod propagation_support;

use std::collections::HashSet;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::Bytes;
use axum::routing::post;
use e2e::process::{Server, example};
use http::HeaderMap;
use propagation_support::{Header, cases, post_raw};
use serde_json::{Value, json};

const T: &str = "5bd66ef5095369c7b0d1f8f4bd33716a";
const S: &str = "c532cb4098ac3dd2";

/// The service as a process, and a server that keeps what it is sent.
struct Rig {
    service: Server,
    address: SocketAddr,
    callback: String,
    calls: Arc<Mutex<Vec<(HeaderMap, Value)>>>,
}

/// The trace headers of a call.
#[derive(Clone, Debug)]
struct Call {
    trace_id: String,
    parent_id: String,
    flags: String,
    tracestate: Option<String>,
}

impl Rig {
    async fn start(variables: &[(&str, &str)]) -> Self {
        let calls = Arc::new(Mutex::new(Vec::new()));
        let keep = calls.clone();
        let callback = post(move |headers: HeaderMap, body: Bytes| async move {
            keep.lock().unwrap().push((headers, serde_json::from_slice(&body).unwrap()));
        });
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let callback_address = listener.local_addr().unwrap();
        tokio::spawn(async move { axum::serve(listener, Router::new().route("/callback", callback)).await });

        let mut command = example("trace_context_service");
        command.args(["--port", "0"]).envs(variables.iter().copied());
        let service = Server::start(command).await;
        let address = service.url.strip_prefix("http://").unwrap().parse().unwrap();
        Self { service, address, callback: format!("http://{callback_address}/callback"), calls }
    }

    /// Sends `body` to the service; the calls that came of it, raw.
    async fn post(&self, headers: &[Header], body: &Value) -> Vec<(HeaderMap, Value)> {
        let (status, answer) = post_raw(self.address, "/test", headers, body.to_string().as_bytes()).await;
        assert_eq!(status, 200);
        let statuses: Vec<Option<u16>> = serde_json::from_slice(&answer).unwrap();
        assert!(statuses.iter().all(|status| *status == Some(200)), "{statuses:?}");
        std::mem::take(&mut self.calls.lock().unwrap())
    }

    /// The call that a request with these headers brings about.
    async fn one(&self, headers: &[(&str, &str)]) -> Call {
        let headers: Vec<Header> = headers.iter().map(|(name, value)| ((*name).to_owned(), (*value).into())).collect();
        let calls = self.post(&headers, &json!([{"url": self.callback, "arguments": []}])).await;
        let [(call, _)] = &calls[..] else { panic!("{calls:?}") };
        Call::of(call)
    }
}

impl Call {
    fn of(headers: &HeaderMap) -> Self {
        let all = |name: &str| -> Vec<String> {
            headers.get_all(name).iter().map(|value| value.to_str().unwrap().to_owned()).collect()
        };
        let [traceparent] = &all("traceparent")[..] else { panic!("{headers:?}") };
        let fields: Vec<_> = traceparent.split('-').map(str::to_owned).collect();
        let [version, trace_id, parent_id, flags] = &fields[..] else { panic!("{traceparent}") };
        let lower_hex = |text: &str| text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
        assert_eq!((&**version, trace_id.len(), parent_id.len(), flags.len()), ("00", 32, 16, 2), "{traceparent}");
        assert!(lower_hex(trace_id) && lower_hex(parent_id) && lower_hex(flags), "{traceparent}");
        assert!(trace_id.bytes().any(|b| b != b'0') && parent_id.bytes().any(|b| b != b'0'), "{traceparent}");
        let tracestate = all("tracestate");
        assert!(tracestate.len() <= 1 && !tracestate.contains(&String::new()), "{tracestate:?}");
        Self {
            trace_id: trace_id.clone(),
            parent_id: parent_id.clone(),
            flags: flags.clone(),
            tracestate: tracestate.into_iter().next(),
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_golden_case_through_the_process() {
    let mut rig = Rig::start(&[]).await;
    for case in cases() {
        let arguments = json!({"case": case.id, "nested": [1, null]});
        let calls = rig.post(&case.headers, &json!([{"url": rig.callback, "arguments": arguments}])).await;
        let [(call, body)] = &calls[..] else { panic!("{}: {} calls", case.id, calls.len()) };
        assert_eq!(*body, arguments);
        let sent: Vec<Header> = call.iter().map(|(n, v)| (n.to_string(), v.as_bytes().to_owned())).collect();
        case.check(&sent, "03");
    }
    rig.service.stop().await;
}

/// What a request's headers are to lead to.
enum Outcome {
    /// The trace goes on, with this tracestate.
    Goes(Option<String>),
    /// Another trace, without a tracestate.
    New,
}
use Outcome::{Goes, New};

/// What the official suite asks of one call, at its strictest, in this project's words and data.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_the_official_suite_asks_of_one_call() {
    let mut rig = Rig::start(&[]).await;
    let valid = format!("00-{T}-{S}-01");
    let parent = |text: &str| text.replace("{T}", T).replace("{S}", S);
    let traceparents = [
        // The known version, a higher one, the forbidden one.
        ("00-{T}-{S}-01", Goes(None)),
        ("00-{T}-{S}-01-anything", New),
        ("00-{T}-{S}-01.", New),
        ("00-{T}-{S}-01.anything", New),
        ("cc-{T}-{S}-01", Goes(None)),
        ("cc-{T}-{S}-01-anything", Goes(None)),
        ("cc-{T}-{S}-01.anything", New),
        ("ff-{T}-{S}-01", New),
        // Each field: other characters, too long, too short, zero.
        (".0-{T}-{S}-01", New),
        ("0.-{T}-{S}-01", New),
        ("000-{T}-{S}-01", New),
        ("0000-{T}-{S}-01", New),
        ("0-{T}-{S}-01", New),
        ("00-00000000000000000000000000000000-{S}-01", New),
        ("00-.bd66ef5095369c7b0d1f8f4bd33716a-{S}-01", New),
        ("00-{T}0-{S}-01", New),
        ("00-{T}{T}-{S}-01", New),
        ("00-bd66ef5095369c7b0d1f8f4bd33716a-{S}-01", New),
        ("00-{T}-0000000000000000-01", New),
        ("00-{T}-.532cb4098ac3dd2-01", New),
        ("00-{T}-{S}0-01", New),
        ("00-{T}-{S}{S}-01", New),
        ("00-{T}-532cb4098ac3dd2-01", New),
        ("00-{T}-{S}-.0", New),
        ("00-{T}-{S}-0.", New),
        ("00-{T}-{S}-001", New),
        ("00-{T}-{S}-1", New),
        // White space around the field, but not in it.
        (" 00-{T}-{S}-01", Goes(None)),
        ("\t00-{T}-{S}-01\t", Goes(None)),
        ("\t 00-{T}-{S}-01 \t", Goes(None)),
        ("00- {T}-{S}-01", New),
    ];
    let requests = traceparents
        .into_iter()
        .map(|(text, outcome)| (vec![("traceparent", parent(text))], outcome))
        .chain([
            (vec![], New),
            (vec![("traceparent", valid.clone()), ("traceparent", valid.replace("5bd6", "4bd6"))], New),
            (vec![("trace-parent", valid.clone())], New),
            (vec![("trace.parent", valid.clone())], New),
            (vec![("TraceParent", valid.clone())], Goes(None)),
            (vec![("TrAcEpArEnT", valid.clone())], Goes(None)),
            (vec![("TRACEPARENT", valid.clone())], Goes(None)),
            (vec![("tracestate", "foo=1".to_owned())], New),
        ])
        .chain(
            tracestates()
                .into_iter()
                .map(|(lines, want)| ([vec![("traceparent", valid.clone())], lines].concat(), Goes(want))),
        );
    for (headers, outcome) in requests {
        let headers: Vec<_> = headers.iter().map(|(name, value)| (*name, value.as_str())).collect();
        let call = rig.one(&headers).await;
        match outcome {
            Goes(tracestate) => {
                assert_eq!((&*call.trace_id, &*call.flags), (T, "01"), "{headers:?}");
                assert_ne!(call.parent_id, S, "{headers:?}");
                assert_eq!(call.tracestate, tracestate, "{headers:?}");
            }
            New => {
                assert!(call.trace_id != T && call.trace_id != T.replace("5bd6", "4bd6"), "{headers:?}");
                assert_eq!((&*call.flags, call.tracestate), ("03", None), "{headers:?}");
            }
        }
    }
    rig.service.stop().await;
}

type Lines = Vec<(&'static str, String)>;

/// Lines of a request whose traceparent is good, and the tracestate that goes on.
fn tracestates() -> Vec<(Lines, Option<String>)> {
    const ALL_KEY: &str = "0123456789abcdefghijklmnopqrstuvwxyz_-*/@=1";
    const ALL_VALUE: &str =
        "foo=!\"#$%&'()*+-./0123456789:;<>?@ABCDEFGHIJKLMNOPQRSTUVWXYZ[\\]^_`abcdefghijklmnopqrstuvwxyz{|}~";
    let key_256 = format!("{}=1", "z".repeat(256));
    let members_32 = (1..=32).map(|i| format!("b{i}={i}")).collect::<Vec<_>>().join(",");
    let one = |text: &str| vec![("tracestate", text.to_owned())];
    let list = [
        (one("foo=1"), Some("foo=1")),
        (one("foo=1,bar=2"), Some("foo=1,bar=2")),
        (vec![("trace-state", "foo=1".to_owned())], None),
        (vec![("trace.state", "foo=1".to_owned())], None),
        (vec![("TraceState", "foo=1".to_owned())], Some("foo=1")),
        (vec![("TrAcEsTaTe", "foo=1".to_owned())], Some("foo=1")),
        (one(""), None),
        ([one("foo=1"), one("")].concat(), Some("foo=1")),
        ([one(""), one("foo=1")].concat(), Some("foo=1")),
        ([one("foo=1,bar=2"), one("rojo=1,congo=2"), one("baz=3")].concat(), Some("foo=1,bar=2,rojo=1,congo=2,baz=3")),
        (one("foo=1,foo=2"), Some("foo=1")),
        ([one("foo=1"), one("foo=2,bar=3")].concat(), Some("foo=1,bar=3")),
        (one(ALL_KEY), Some(ALL_KEY)),
        (one(ALL_VALUE), Some(ALL_VALUE)),
        (one("foo=1 \t , \t bar=2, \t baz=3"), Some("foo=1,bar=2,baz=3")),
        (one(" foo=1"), Some("foo=1")),
        (one("\tfoo=1\t"), Some("foo=1")),
        (one("foo =1"), None),
        (one("FOO=1"), None),
        (one("foo.bar=1"), None),
        (one("foo=1,"), Some("foo=1")),
        (one("tenant@vendor=1,bar=2"), Some("tenant@vendor=1,bar=2")),
        // Level 2 has no more rules for the at sign than this one.
        (one("foo@=1,foo@@bar=2,foo@bar@baz=3"), Some("foo@=1,foo@@bar=2,foo@bar@baz=3")),
        (one("@foo=1,bar=2"), None),
        (one("foo=bar=baz"), None),
        (one("foo=,bar=3"), None),
        (one("foo"), None),
        (one(&key_256), Some(&*key_256)),
        (one(&format!("z{key_256}")), None),
        (one(&members_32), Some(&members_32)),
        (one(&format!("{members_32},b33=33")), None),
        ([one(&members_32), one("b33=33")].concat(), None),
    ];
    list.into_iter().map(|(lines, want)| (lines, want.map(str::to_owned))).collect()
}

/// The suite's requests for several calls: one trace, and a parent id of each call's own.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn several_calls_share_the_trace_but_no_parent_id() {
    let mut rig = Rig::start(&[]).await;
    let three = json!([{"url": rig.callback}, {"url": rig.callback, "arguments": [1]}, {"url": rig.callback}]);
    let illegal = format!("00-{T}-{S}-01-x");
    for (traceparent, flags) in [
        (Some(format!("00-{T}-{S}-00")), "00"),
        (Some(format!("00-{T}-{S}-01")), "01"),
        (Some(format!("00-{T}-{S}-02")), "02"),
        (Some(format!("00-{T}-{S}-03")), "03"),
        (Some(illegal), "03"),
        (None, "03"),
    ] {
        let headers: Vec<Header> =
            traceparent.iter().map(|value| ("traceparent".to_owned(), value.clone().into_bytes())).collect();
        let calls: Vec<_> = rig.post(&headers, &three).await.iter().map(|(call, _)| Call::of(call)).collect();
        assert_eq!(calls.len(), 3);
        let traces: HashSet<_> = calls.iter().map(|call| &*call.trace_id).collect();
        assert_eq!(traces.len(), 1, "{traceparent:?}");
        let adopted = traceparent.as_ref().is_some_and(|text| text.len() == 55);
        assert_eq!(traces.contains(T), adopted, "{traceparent:?}");
        let parents: HashSet<_> = calls.iter().map(|call| &*call.parent_id).chain([S]).collect();
        assert_eq!(parents.len(), 4, "{traceparent:?}: {calls:?}");
        assert!(calls.iter().all(|call| call.flags == flags), "{traceparent:?}: {calls:?}");
    }
    rig.service.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_trace_goes_through_several_hops() {
    let mut rig = Rig::start(&[]).await;
    let own = format!("{}/test", rig.service.url);
    let nested = json!([{"url": own, "arguments": [{"url": own, "arguments": [{"url": rig.callback}]}]}]);
    for flags in ["00", "01", "02", "03"] {
        let headers = [
            ("traceparent".to_owned(), format!("00-{T}-{S}-{flags}").into_bytes()),
            ("tracestate".to_owned(), b"a=1, b@c@d=2".to_vec()),
        ];
        let calls = rig.post(&headers, &nested).await;
        let call = Call::of(&calls[0].0);
        assert_eq!((&*call.trace_id, &*call.flags, call.tracestate.as_deref()), (T, flags, Some("a=1,b@c@d=2")));
        assert_ne!(call.parent_id, S);
    }
    rig.service.stop().await;
}

/// ING-01, ING-03: junk beside the field changes neither the answer nor the trace, and repeats are stable.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn junk_in_headers_changes_no_answer() {
    let mut rig = Rig::start(&[]).await;
    let body = json!([{"url": rig.callback}]);
    let header = |name: &str, value: &[u8]| (name.to_owned(), value.to_vec());
    let valid = format!("00-{T}-{S}-01");
    for junk in [
        vec![header("user-agent", b"Moto Z\xb2")],
        vec![header("tracestate", b"\xff=\xfe")],
        vec![header("baggage", b"a=\xff,=,;;,b")],
        vec![header("x-\x7e", b"\x80\t\xff")],
    ] {
        let headers = [junk, vec![header("traceparent", valid.as_bytes())]].concat();
        let call = Call::of(&rig.post(&headers, &body).await[0].0);
        assert_eq!((&*call.trace_id, call.tracestate), (T, None));
    }
    let twice = [header("traceparent", valid.as_bytes()), header("traceparent", valid.as_bytes())];
    for _ in 0..100 {
        assert_ne!(Call::of(&rig.post(&twice, &body).await[0].0).trace_id, T);
    }
    rig.service.stop().await;
}

/// ING-14, on the wire.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn baggage_goes_on_within_its_limits() {
    let mut rig = Rig::start(&[]).await;
    let body = json!([{"url": rig.callback}]);
    let long = format!("a={},b=2", "v".repeat(9000));
    let many: Vec<_> = (0..200).map(|i| format!("k{i:03}=v")).collect();
    for (received, want) in [
        ("token=a=b=c".to_owned(), "token=a=b=c".to_owned()),
        ("x=%zz,k=v;p=1".to_owned(), "k=v;p=1,x=%25zz".to_owned()),
        ("novalue,k=%C3%A9".to_owned(), "k=%C3%A9".to_owned()),
        (long, "b=2".to_owned()),
        (many.join(","), many[..64].join(",")),
    ] {
        let calls = rig.post(&[("baggage".to_owned(), received.into_bytes())], &body).await;
        let sent: Vec<_> = calls[0].0.get_all("baggage").iter().map(|value| value.to_str().unwrap()).collect();
        assert_eq!(sent, [want]);
    }
    rig.service.stop().await;
}

/// `OTEL_PROPAGATORS` says which fields are read and written.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_the_chosen_propagators_speak() {
    for (propagators, trace, baggage) in [
        ("tracecontext", true, false),
        ("baggage", false, true),
        ("none", false, false),
        (" TraceContext , baggage ", true, true),
        // The unknown one is left out, with a warning.
        ("bogus,tracecontext", true, false),
    ] {
        let mut rig = Rig::start(&[("OTEL_PROPAGATORS", propagators)]).await;
        let headers = [
            ("traceparent".to_owned(), format!("00-{T}-{S}-01").into_bytes()),
            ("tracestate".to_owned(), b"a=1".to_vec()),
            ("baggage".to_owned(), b"k=v".to_vec()),
        ];
        let calls = rig.post(&headers, &json!([{"url": rig.callback}])).await;
        let call = &calls[0].0;
        if trace {
            let call = Call::of(call);
            assert_eq!((&*call.trace_id, call.tracestate.as_deref()), (T, Some("a=1")), "{propagators}");
        } else {
            assert!(!call.contains_key("traceparent") && !call.contains_key("tracestate"), "{propagators}");
        }
        assert_eq!(call.contains_key("baggage"), baggage, "{propagators}");
        rig.service.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_telemetry_off_no_header_is_written() {
    let mut rig = Rig::start(&[("NEMO_GYM_OTEL_ENABLED", "0")]).await;
    let headers = [("traceparent".to_owned(), format!("00-{T}-{S}-01").into_bytes())];
    let calls = rig.post(&headers, &json!([{"url": rig.callback}])).await;
    let names: HashSet<_> = calls[0].0.keys().map(|name| name.as_str()).collect();
    assert_eq!(names, HashSet::from(["host", "content-type", "content-length", "accept"]));
    rig.service.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_body_that_is_no_list_of_calls_is_a_bad_request() {
    let mut rig = Rig::start(&[]).await;
    for body in ["", "{}", "[1]", "[{}]"] {
        assert_eq!(post_raw(rig.address, "/test", &[], body.as_bytes()).await.0, 400, "{body}");
    }
    let (status, answer) =
        post_raw(rig.address, "/test", &[], br#"[{"url": "http://127.0.0.1:9/"}, {"url": "no url"}]"#).await;
    assert_eq!((status, &*answer), (200, &b"[null,null]"[..]));
    rig.service.stop().await;
}

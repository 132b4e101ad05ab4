//! The example resources server answers as its Python counterpart was recorded to.

mod e2e;

use std::collections::HashMap;

use e2e::check;
use e2e::golden::{self, Exchange};
use e2e::process::{Server, example};

/// Recorded exchanges outside the example's scope: sessions bound by id, closing them, aggregation, re-verification.
fn in_scope(exchange: &Exchange) -> bool {
    let route = exchange.request.path.rsplit('/').next().unwrap_or_default();
    let bound_session = exchange.request.json.as_ref().is_some_and(|json| json.get("resources_session_id").is_some());
    exchange.server == "resources"
        && exchange.caller == "client"
        && !["close_session", "aggregate_metrics", "reverify_mode"].contains(&route)
        && !bound_session
}

#[tokio::test(flavor = "multi_thread")]
async fn answers_as_recorded() {
    let mut server = Server::start(example("resources_server")).await;
    let client = reqwest::Client::builder().no_proxy().build().unwrap();
    let mut replayed = 0;
    for exchange in golden::exchanges().iter().filter(|exchange| in_scope(exchange)) {
        let method = exchange.request.method.parse().unwrap();
        let mut request = client.request(method, format!("{}{}", server.url, exchange.request.path));
        match exchange.request.json.as_ref() {
            Some(json) if json.get("<invalid json>").is_some() => request = request.body("{bad"),
            Some(json) => request = request.json(json),
            None => {}
        }
        let response = request.send().await.unwrap();
        assert_eq!(response.status().as_u16(), exchange.status, "{}", exchange.name);
        check::headers(exchange, response.headers());
        check::body(exchange, response.json().await.unwrap());
        replayed += 1;
    }
    assert_eq!(replayed, 26);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_lasts_as_long_as_its_cookie_is_ours() {
    let mut server = Server::start(example("resources_server")).await;
    let client = reqwest::Client::builder().no_proxy().build().unwrap();
    let seed = async |cookie: Option<&str>| {
        let mut request = client.post(format!("{}/seed_session", server.url)).body("{}");
        if let Some(cookie) = cookie {
            request = request.header("cookie", format!("other=1; {cookie}"));
        }
        let response = request.send().await.unwrap();
        let cookie = response.headers()["set-cookie"].to_str().unwrap();
        cookie.split(';').next().unwrap().to_owned()
    };
    let first = seed(None).await;
    assert_eq!(seed(Some(&first)).await, first, "a cookie of ours keeps the session");
    assert_ne!(seed(None).await, first, "without one there is a new session");
    let (name, value) = first.split_once('=').unwrap();
    for forged in [format!("{name}=x.y"), format!("{name}="), format!("{name}={value}0"), format!("x={value}")] {
        let session = seed(Some(&forged)).await;
        assert_ne!(session, first, "{forged}");
        assert_ne!(session, forged, "{forged}");
    }
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn every_required_field_of_a_verify_request_is_missed() {
    let mut server = Server::start(example("resources_server")).await;
    let client = reqwest::Client::builder().no_proxy().build().unwrap();
    let whole = golden::exchange("resources.verify").request.json.clone().unwrap();
    let required: HashMap<&str, u16> = [
        ("/responses_create_params/input", 422),
        ("/response/id", 422),
        ("/response/object", 422),
        ("/response/created_at", 422),
        ("/response/model", 422),
        ("/response/output", 422),
        ("/response/output/0/type", 422),
        ("/response/output/0/call_id", 422),
        ("/response/output/0/name", 422),
        ("/response/output/0/arguments", 422),
        ("/response/output/1/id", 422),
        ("/response/output/1/content", 422),
        ("/response/output/1/content/0/type", 422),
        ("/response/output/1/content/0/text", 422),
        ("/response/output/1/content/0/annotations", 422),
        ("/response/tools", 422),
        ("/response/usage/total_tokens", 422),
        ("/response/usage/input_tokens_details/cached_tokens", 422),
        // Not required:
        ("/response/usage", 200),
        ("/response/status", 200),
        ("/response/output/0/id", 200),
        ("/response/output/0/status", 200),
        ("/response/output/1/status", 200),
    ]
    .into();
    for (pointer, status) in required {
        let (parent, field) = pointer.rsplit_once('/').unwrap();
        let mut cut = whole.clone();
        cut.pointer_mut(parent).unwrap().as_object_mut().unwrap().remove(field).expect(pointer);
        let response = client.post(format!("{}/verify", server.url)).json(&cut).send().await.unwrap();
        assert_eq!(response.status(), status, "without {pointer}");
    }
    server.stop().await;
}

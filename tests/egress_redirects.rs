//! Redirects happen beneath the middleware.

mod egress_support;

use axum::Router;
use axum::response::Redirect;
use axum::routing::{any, get};
use egress_support::*;
use nemo_gym_telemetry::egress::same_server_redirects;
use opentelemetry::Value;
use opentelemetry::trace::{FutureExt as _, Status};
use reqwest_middleware::{ClientBuilder, ClientWithMiddleware};

fn client(rig: &Rig, policy: reqwest::redirect::Policy) -> ClientWithMiddleware {
    let client = reqwest::Client::builder().redirect(policy).build().unwrap();
    ClientBuilder::new(client).with(rig.middleware()).build()
}

#[tokio::test]
async fn within_a_server_a_redirect_is_part_of_the_call() {
    let rig = Rig::new();
    let router = Router::new()
        .route("/start", any(|| async { Redirect::temporary("/end") }))
        .route("/end", any(|body: String| async move { body }));
    let (address, seen) = serve(router).await;
    let request = client(&rig, same_server_redirects()).post(format!("http://{address}/start")).body("kept");
    let response = request.send().with_context(parent(true)).await.unwrap();
    assert_eq!(response.url().path(), "/end");
    assert_eq!(response.text().await.unwrap(), "kept");
    let span = rig.span();
    assert_eq!(span.status, Status::Unset);
    assert!(text(&span, "url.full").unwrap().ends_with("/start"));
    let own = format!("00-{T1}-{}-01", span.span_context.span_id());
    assert_eq!(seen.values("traceparent"), [own.clone(), own]);
}

#[tokio::test]
async fn the_offered_policy_stops_at_another_server() {
    let rig = Rig::new();
    let (other, seen_there) = serve(Router::new().route("/", get(|| async { "other" }))).await;
    let target = format!("http://{other}/");
    let (address, _) = serve(Router::new().route("/", get(|| async move { Redirect::to(&target) }))).await;
    let url = format!("http://{address}/");

    let response = client(&rig, same_server_redirects()).get(&url).send().await.unwrap();
    assert_eq!(response.status(), 303);
    assert_eq!(response.headers()["location"].to_str().unwrap(), format!("http://{other}/"));
    drop(response);
    assert!(seen_there.all().is_empty());
    let span = rig.span();
    assert_eq!(
        (span.status, attribute(&rig.span(), "http.response.status_code")),
        (Status::Unset, Some(Value::I64(303)))
    );

    // reqwest's own policy goes there and takes the headers along: what the offered one is for.
    client(&rig, reqwest::redirect::Policy::default()).get(&url).send().await.unwrap().text().await.unwrap();
    assert_eq!(seen_there.values("traceparent").len(), 1);
    assert_eq!(rig.spans().len(), 2);
}

#[tokio::test]
async fn a_loop_ends_after_ten() {
    let rig = Rig::new();
    let (address, seen) = serve(Router::new().route("/", get(|| async { Redirect::to("/") }))).await;
    let error = client(&rig, same_server_redirects()).get(format!("http://{address}/")).send().await.unwrap_err();
    assert!(error.is_redirect());
    assert_eq!(seen.all().len(), 11);
    let span = rig.span();
    assert!(is_error(&span));
    assert_eq!(text(&span, "error.type").unwrap(), "redirect");
}

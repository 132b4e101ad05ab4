//! Redirects happen beneath the middleware: one CLIENT span, and the headers it wrote go to wherever the redirect leads.

use reqwest::Url;
use reqwest::redirect::Policy;

/// A redirect policy that follows redirects within a server and stops at another one: the caller then gets the
/// redirect response itself. Neither trace context nor baggage reaches a host that the caller did not name.
///
/// Another server is another host or another port; from `http` on port 80 to `https` on port 443 of the same host is
/// followed, the way back is not. Within a server, `reqwest`'s own limit of 10 redirects holds.
///
/// ```
/// let client = reqwest::Client::builder().redirect(nemo_gym_telemetry::egress::same_server_redirects()).build();
/// ```
pub fn same_server_redirects() -> Policy {
    Policy::custom(|attempt| {
        let stays = attempt.previous().first().is_none_or(|first| same_server(first, attempt.url()));
        if stays { Policy::default().redirect(attempt) } else { attempt.stop() }
    })
}

fn same_server(from: &Url, to: &Url) -> bool {
    let secured = || {
        (from.scheme(), from.port_or_known_default()) == ("http", Some(80))
            && (to.scheme(), to.port_or_known_default()) == ("https", Some(443))
    };
    let same_origin = (from.scheme(), from.port_or_known_default()) == (to.scheme(), to.port_or_known_default());
    from.host() == to.host() && (same_origin || secured())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_host_port_or_a_lesser_scheme_is_another_server() {
        let same = |from: &str, to: &str| same_server(&from.parse().unwrap(), &to.parse().unwrap());
        assert!(same("http://h/a", "http://h/b?c"));
        assert!(same("http://H/a", "http://h:80/"));
        assert!(same("http://h/a", "https://h/a"));
        assert!(!same("https://h/a", "http://h/a"));
        assert!(!same("http://h/a", "http://g/a"));
        assert!(!same("http://h/a", "http://h.g/a"));
        assert!(!same("http://h:1/a", "http://h:2/a"));
        assert!(!same("http://h:81/a", "https://h/a"));
        assert!(!same("http://127.0.0.1:1/", "http://localhost:1/"));
    }
}

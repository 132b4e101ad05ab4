//! URLs as they may be shown: no userinfo, no fragment, no credentials in the query.

use std::borrow::Cow;
use std::fmt::Write as _;

use percent_encoding::percent_decode_str;
use reqwest::Url;

/// What stands in place of a secret (HTTP semantic conventions, `url.full`).
const REDACTED: &str = "REDACTED";

/// The value of `url.full`.
///
/// Userinfo and fragment are left out. A query parameter whose name is that of a credential keeps its
/// name and loses its value, as do values that look like credentials themselves (a JSON web token, an
/// `Authorization` value, a URL with userinfo or a query). Path parameters (`;name=value`) are treated the same.
pub(super) fn redacted(url: &Url) -> String {
    let mut out = String::with_capacity(url.as_str().len());
    out.push_str(url.scheme());
    out.push(':');
    if let Some(host) = url.host_str() {
        out.push_str("//");
        out.push_str(host);
        if let Some(port) = url.port() {
            let _ = write!(out, ":{port}");
        }
    }
    match url.path().split_once(';') {
        None => out.push_str(url.path()),
        Some(_) => redact_path(url.path(), &mut out),
    }
    if let Some(query) = url.query() {
        out.push('?');
        redact_pairs(query, &['&', ';'], &mut out);
    }
    out
}

/// The value of `url.query`, by the same rules.
pub(crate) fn redacted_query(query: &str) -> String {
    let mut out = String::with_capacity(query.len());
    redact_pairs(query, &['&', ';'], &mut out);
    out
}

fn redact_path(path: &str, out: &mut String) {
    for (i, segment) in path.split('/').enumerate() {
        if i > 0 {
            out.push('/');
        }
        match segment.split_once(';') {
            None => out.push_str(segment),
            Some((name, parameters)) => {
                out.push_str(name);
                out.push(';');
                redact_pairs(parameters, &[';'], out);
            }
        }
    }
}

fn redact_pairs(text: &str, separators: &[char], out: &mut String) {
    let mut rest = text;
    loop {
        let end = rest.find(separators).unwrap_or(rest.len());
        let pair = &rest[..end];
        match pair.split_once('=') {
            Some((name, value)) if !value.is_empty() && (is_credential_name(name) || is_credential_value(value)) => {
                out.push_str(name);
                out.push('=');
                out.push_str(REDACTED);
            }
            None if is_credential_value(pair) => out.push_str(REDACTED),
            _ => out.push_str(pair),
        }
        let Some(separator) = rest[end..].chars().next() else { return };
        out.push(separator);
        rest = &rest[end + separator.len_utf8()..];
    }
}

/// `+` is a space in a query; percent-encoding may hide letters of a name.
fn decoded(text: &str) -> Cow<'_, str> {
    if text.contains(['%', '+']) {
        Cow::Owned(percent_decode_str(&text.replace('+', " ")).decode_utf8_lossy().into_owned())
    } else {
        Cow::Borrowed(text)
    }
}

/// Whether a parameter of this name (percent-encoded, any case, any of the usual separators) holds a credential.
fn is_credential_name(name: &str) -> bool {
    /// Names that are credentials as they stand.
    const WHOLE: &[&str] = &[
        "sig",
        "code",
        "auth",
        "authorization",
        "oauth",
        "bearer",
        "jwt",
        "pass",
        "passphrase",
        "pwd",
        "pin",
        "otp",
        "sid",
        "hmac",
        "assertion",
        "samlresponse",
        "samlrequest",
        "cookie",
        "state",
        "nonce",
        "codeverifier",
        "sas",
    ];
    /// Parts that make any name a credential's.
    const PARTS: &[&str] = &[
        "token",
        "secret",
        "passw",
        "signature",
        "credential",
        "apikey",
        "accesskey",
        "privatekey",
        "sessionid",
        "sessid",
        "clientassertion",
        "authkey",
        "authcode",
    ];
    let name: String = decoded(name).chars().filter(|c| c.is_alphanumeric()).flat_map(char::to_lowercase).collect();
    name.ends_with("key") || WHOLE.contains(&name.as_str()) || PARTS.iter().any(|part| name.contains(part))
}

/// Whether a value is a credential by its own looks.
fn is_credential_value(value: &str) -> bool {
    let value = decoded(value);
    let lower = value.get(..8).unwrap_or(&value).to_ascii_lowercase();
    let nested = || value.split_once("://").is_some_and(|(_, rest)| rest.contains(['@', '?', '#', ';']));
    value.starts_with("eyJ") || lower.starts_with("bearer ") || lower.starts_with("basic ") || nested()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(url: &str) -> String {
        redacted(&url.parse().expect("a URL"))
    }

    #[test]
    fn userinfo_and_fragment_are_left_out() {
        assert_eq!(shown("http://user:PW1@h/v1#f"), "http://h/v1");
        assert_eq!(shown("http://user@h:81/"), "http://h:81/");
        assert_eq!(shown("https://:pw@[::1]:8443/a"), "https://[::1]:8443/a");
    }

    #[test]
    fn credentials_lose_their_values() {
        for name in [
            "api_key",
            "apikey",
            "API-KEY",
            "ApiKey",
            "sig",
            "SIG",
            "token",
            "access_token",
            "X-Amz-Signature",
            "X-Amz-Credential",
            "x-amz-security-token",
            "X-Goog-Signature",
            "AWSAccessKeyId",
            "client_secret",
            "password",
            "passwd",
            "pwd",
            "key",
            "Key",
            "code",
            "id_token",
            "refresh_token",
            "auth",
            "authorization",
            "subscription-key",
            "hub.secret",
            "jwt",
            "%61pi_key",
            "to%6ben",
            "t%4Fken",
            "api+key",
            "session_id",
        ] {
            let shown = shown(&format!("http://h/p?q=ok&{name}=SECRET&r=2"));
            assert_eq!(shown, format!("http://h/p?q=ok&{name}=REDACTED&r=2"));
        }
    }

    #[test]
    fn other_parameters_stay() {
        for query in ["q=ok", "a=1&b=2", "page=2&sort=asc", "empty=", "flag", "a==b", "&&", "model=gpt-4", "author=me"]
        {
            assert_eq!(shown(&format!("http://h/p?{query}")), format!("http://h/p?{query}"));
        }
    }

    #[test]
    fn values_that_look_like_credentials_go() {
        assert_eq!(shown("http://h/?x=eyJhbGciOi.e30.c2ln"), "http://h/?x=REDACTED");
        assert_eq!(shown("http://h/?x=Bearer%20abc"), "http://h/?x=REDACTED");
        assert_eq!(shown("http://h/?to=http%3A%2F%2Fu%3Apw%40g%2F"), "http://h/?to=REDACTED");
        assert_eq!(shown("http://h/?to=http://g/?token=K"), "http://h/?to=REDACTED");
        assert_eq!(shown("http://h/?to=http://g/plain"), "http://h/?to=http://g/plain");
        assert_eq!(shown("http://h/?eyJhbGciOi.e30.c2ln"), "http://h/?REDACTED");
    }

    #[test]
    fn every_separator_ends_a_value() {
        assert_eq!(shown("http://h/?a=1;token=K;b=2"), "http://h/?a=1;token=REDACTED;b=2");
        assert_eq!(shown("http://h/a;jsessionid=K/b;v=1?q=ok"), "http://h/a;jsessionid=REDACTED/b;v=1?q=ok");
    }
}

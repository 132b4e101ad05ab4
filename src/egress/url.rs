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
/// name and loses its value, as do values that look like credentials themselves (a JSON web token, the key of a
/// well-known service, an `Authorization` value) or hold one (a URL, parameters, JSON). Parameters of path segments
/// (`;name=value`) are treated the same, and a segment that is such a key is withheld.
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
    redact_path(url.path(), &mut out);
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
        let (name, parameters) = segment.split_once(';').map_or((segment, None), |(n, p)| (n, Some(p)));
        out.push_str(if is_key(&decoded(name)) { REDACTED } else { name });
        if let Some(parameters) = parameters {
            out.push(';');
            redact_pairs(parameters, &[';'], out);
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

/// As the server will read it: a `+` in a query is a space, and percent-encoding may hide letters, twice over.
fn decoded(text: &str) -> Cow<'_, str> {
    let mut text = if text.contains('+') { Cow::Owned(text.replace('+', " ")) } else { Cow::Borrowed(text) };
    for _ in 0..3 {
        if !text.contains('%') {
            break;
        }
        text = Cow::Owned(percent_decode_str(&text).decode_utf8_lossy().into_owned());
    }
    text
}

/// Names that are credentials as they stand, without case and separators.
const CREDENTIALS: &[&str] = &[
    "assertion",
    "auth",
    "authorization",
    "bearer",
    "code",
    "codeverifier",
    "cookie",
    "cred",
    "creds",
    "hmac",
    "jwt",
    "mfa",
    "nonce",
    "oauth",
    "otp",
    "pass",
    "passphrase",
    "pin",
    "pwd",
    "samlrequest",
    "samlresponse",
    "sas",
    "session",
    "sid",
    "sig",
    "sign",
    "state",
    "ticket",
    "totp",
];

/// Parts that make any name a credential's.
const CREDENTIAL_PARTS: &[&str] = &[
    "accesskey",
    "apikey",
    "authcode",
    "authkey",
    "clientassertion",
    "credential",
    "csrf",
    "passw",
    "privatekey",
    "secret",
    "sessid",
    "sessionid",
    "signature",
    "token",
    "xsrf",
];

/// How the keys of well-known services begin.
const KEY_PREFIXES: &[&str] = &[
    "AIza",
    "AKIA",
    "ASIA",
    "eyJ",
    "ghp_",
    "gho_",
    "ghs_",
    "github_pat_",
    "glpat-",
    "hf_",
    "nvapi-",
    "sk-",
    "xoxb-",
    "xoxp-",
];

/// Whether a parameter of this name, in any spelling, holds a credential.
fn is_credential_name(name: &str) -> bool {
    let name: String = decoded(name).chars().filter(|c| c.is_alphanumeric()).flat_map(char::to_lowercase).collect();
    name.ends_with("key")
        || CREDENTIALS.contains(&name.as_str())
        || CREDENTIAL_PARTS.iter().any(|part| name.contains(part))
}

fn is_key(value: &str) -> bool {
    KEY_PREFIXES.iter().any(|prefix| value.starts_with(prefix)) && value.len() >= 12
}

/// Whether a value is a credential by its own looks, or holds one: a URL with userinfo, parameters or JSON members whose
/// names are those of credentials.
fn is_credential_value(value: &str) -> bool {
    let value = decoded(value);
    let value = value.trim();
    let scheme = value.split_once(' ').map_or("", |(scheme, _)| scheme);
    is_key(value)
        || ["basic", "bearer", "digest", "negotiate", "token"].iter().any(|known| scheme.eq_ignore_ascii_case(known))
        || value.split_once("://").is_some_and(|(_, rest)| rest.contains('@'))
        || value.contains(['=', ':'])
            && value.split(['?', '&', ';', '#', ',', '{', '"', '\'', ' ', '=', ':']).any(is_credential_name)
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
            "%2574oken",
            "auth[token]",
            "sign",
            "session_id",
        ] {
            let shown = shown(&format!("http://h/p?q=ok&{name}=SECRET&r=2"));
            assert_eq!(shown, format!("http://h/p?q=ok&{name}=REDACTED&r=2"));
        }
    }

    #[test]
    fn other_parameters_stay() {
        for query in [
            "q=ok",
            "a=1&b=2",
            "page=2&sort=asc",
            "empty=",
            "flag",
            "a==b",
            "&&",
            "model=gpt-4",
            "author=me",
            "t=12:30",
            "url=http://g/a?b=c",
            "hf_model=1",
            "sk=1",
        ] {
            assert_eq!(shown(&format!("http://h/p?{query}")), format!("http://h/p?{query}"));
        }
    }

    #[test]
    fn values_that_look_like_credentials_go() {
        for value in [
            "sk-proj-0123456789",
            "nvapi-0123456789",
            "ghp_0123456789abcdef",
            "hf_0123456789",
            "Basic%20dTpw",
            "token+abc",
            "%2Flogin%3Ftoken%3DK",
            "%7B%22api_key%22%3A%22K%22%7D",
            "%257B%2522token%2522%253A1%257D",
            "a%3Db%26sig%3DK",
            "user%3Apassword",
            "http%3A%2F%2Fh%2F%3FX-Amz-Signature%3DK",
        ] {
            assert_eq!(shown(&format!("http://h/?x={value}&q=ok")), "http://h/?x=REDACTED&q=ok", "{value}");
        }
        assert_eq!(shown("http://h/v1/sk-proj-0123456789/x"), "http://h/v1/REDACTED/x");
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

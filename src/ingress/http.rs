//! Methods, schemes and protocol versions as the semantic conventions write them: closed sets, so that nothing a
//! client sends becomes a name or a metric attribute.

/// A request method; [`Method::Other`] for any that is not a known one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Method {
    Get,
    Post,
    Put,
    Delete,
    Patch,
    Head,
    Options,
    Connect,
    Trace,
    Query,
    Other,
}

impl Method {
    pub(crate) const COUNT: usize = 11;
    pub(crate) const ALL: [Method; Self::COUNT] = [
        Method::Get,
        Method::Post,
        Method::Put,
        Method::Delete,
        Method::Patch,
        Method::Head,
        Method::Options,
        Method::Connect,
        Method::Trace,
        Method::Query,
        Method::Other,
    ];

    /// Methods are case-sensitive: `get` is not `GET`.
    #[inline]
    pub(crate) fn of(method: &http::Method) -> Self {
        match *method {
            http::Method::GET => Method::Get,
            http::Method::POST => Method::Post,
            http::Method::PUT => Method::Put,
            http::Method::DELETE => Method::Delete,
            http::Method::PATCH => Method::Patch,
            http::Method::HEAD => Method::Head,
            http::Method::OPTIONS => Method::Options,
            http::Method::CONNECT => Method::Connect,
            http::Method::TRACE => Method::Trace,
            // Older versions of `http` have no constant for it.
            _ if method.as_str() == "QUERY" => Method::Query,
            _ => Method::Other,
        }
    }

    /// `http.request.method`
    pub(crate) const fn as_attribute(self) -> &'static str {
        match self {
            Method::Other => "_OTHER",
            known => known.as_name(),
        }
    }

    /// The method in a span's name.
    pub(crate) const fn as_name(self) -> &'static str {
        match self {
            Method::Get => "GET",
            Method::Post => "POST",
            Method::Put => "PUT",
            Method::Delete => "DELETE",
            Method::Patch => "PATCH",
            Method::Head => "HEAD",
            Method::Options => "OPTIONS",
            Method::Connect => "CONNECT",
            Method::Trace => "TRACE",
            Method::Query => "QUERY",
            Method::Other => "HTTP",
        }
    }
}

/// `url.scheme`
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Scheme {
    Http,
    Https,
}

impl Scheme {
    pub(crate) const COUNT: usize = 2;
    pub(crate) const ALL: [Scheme; Self::COUNT] = [Scheme::Http, Scheme::Https];

    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Scheme::Http => "http",
            Scheme::Https => "https",
        }
    }

    pub(crate) const fn default_port(self) -> u16 {
        match self {
            Scheme::Http => 80,
            Scheme::Https => 443,
        }
    }
}

/// `network.protocol.version`
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Version {
    Http09,
    Http10,
    Http11,
    Http2,
    Http3,
}

impl Version {
    #[inline]
    pub(crate) fn of(version: http::Version) -> Self {
        match version {
            http::Version::HTTP_09 => Version::Http09,
            http::Version::HTTP_10 => Version::Http10,
            http::Version::HTTP_2 => Version::Http2,
            http::Version::HTTP_3 => Version::Http3,
            _ => Version::Http11,
        }
    }

    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Version::Http09 => "0.9",
            Version::Http10 => "1.0",
            Version::Http11 => "1.1",
            Version::Http2 => "2",
            Version::Http3 => "3",
        }
    }
}

/// A status code as text, for `error.type`.
pub(crate) fn status_text(status: u16) -> std::borrow::Cow<'static, str> {
    match status {
        500 => "500".into(),
        501 => "501".into(),
        502 => "502".into(),
        503 => "503".into(),
        504 => "504".into(),
        other => other.to_string().into(),
    }
}

//! What a middleware was told, resolved.

use std::fmt;

use http::Extensions;
use http::uri::Authority;
use reqwest::{Request, Url};

use super::request_choices::{DestinationServer, UrlTemplate};
use crate::ingress::Text;
use crate::telemetry::Telemetry;

#[derive(Clone, Default)]
pub(super) struct Choices {
    /// `None`: the process-wide handle.
    pub(super) telemetry: Option<Telemetry>,
    pub(super) end_at_headers: bool,
    hosts: Vec<InternalHost>,
    templates: Option<matchit::Router<Text>>,
}

/// A host that belongs to the Gym run.
#[derive(Clone, Debug)]
struct InternalHost {
    host: String,
    /// `None`: every port.
    port: Option<u16>,
    server: Option<Text>,
}

/// Where a request goes, as far as somebody said so.
#[derive(Default)]
pub(super) struct Destination {
    /// To a Gym server.
    pub(super) internal: bool,
    pub(super) server: Option<Text>,
}

impl Choices {
    pub(super) const DEFAULT: &Self =
        &Self { telemetry: None, end_at_headers: false, hosts: Vec::new(), templates: None };

    /// Adds a host, `host` or `host:port`. What is neither is said once and left out.
    pub(super) fn add_host(&mut self, host: &str, server: Option<&str>) {
        match host.trim().parse::<Authority>() {
            Ok(authority) if !authority.host().is_empty() && !authority.as_str().contains('@') => {
                self.hosts.push(InternalHost {
                    host: authority.host().to_ascii_lowercase(),
                    port: authority.port_u16(),
                    server: server.filter(|name| !name.is_empty()).map(Text::new),
                });
            }
            _ => crate::diagnostics::warn_once("an internal host of TracePropagation is neither host nor host:port"),
        }
    }

    pub(super) fn add_template(&mut self, template: &str) {
        let templates = self.templates.get_or_insert_default();
        if let Err(error) = templates.insert(template, Text::new(template)) {
            crate::diagnostics::warn_once(&format!("URL template {template} is not used: {error}"));
        }
    }

    #[inline]
    pub(super) fn destination(&self, request: &Request, extensions: &Extensions) -> Destination {
        if let Some(DestinationServer(name)) = extensions.get() {
            return Destination { internal: true, server: Some(Text::new(name)) };
        }
        if self.hosts.is_empty() {
            return Destination::default();
        }
        match self.hosts.iter().find(|host| host.matches(request.url())) {
            Some(host) => Destination { internal: true, server: host.server.clone() },
            None => Destination::default(),
        }
    }

    /// The template of the request's path that its caller or this middleware's builder named.
    #[inline]
    pub(super) fn template(&self, request: &Request, extensions: &Extensions) -> Option<Text> {
        if let Some(UrlTemplate(template)) = extensions.get() {
            return Some(Text::new(template));
        }
        self.templates.as_ref()?.at(request.url().path()).ok().map(|found| found.value.clone())
    }
}

impl InternalHost {
    fn matches(&self, url: &Url) -> bool {
        url.host_str().is_some_and(|host| host.eq_ignore_ascii_case(&self.host))
            && (self.port.is_none() || self.port == url.port_or_known_default())
    }
}

impl Destination {
    /// The server's name for as long as the process lives; `None` for one of too many.
    pub(super) fn interned(&self) -> Option<&'static str> {
        match &self.server {
            Some(Text::Interned(name)) => Some(name),
            _ => None,
        }
    }
}

impl fmt::Debug for Choices {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Choices")
            .field("telemetry", &self.telemetry)
            .field("end_at_headers", &self.end_at_headers)
            .field("hosts", &self.hosts)
            .finish_non_exhaustive()
    }
}

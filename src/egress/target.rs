//! What a request's URL says on a span, kept for the few URLs that a server calls again and again.

use std::cell::RefCell;

use opentelemetry::StringValue;
use reqwest::Url;

use super::url;

/// A URL as span attributes.
#[derive(Clone, Debug)]
pub(super) struct Target {
    /// `url.full`
    pub(super) full: StringValue,
    /// `server.address`: a name, or an IP address without brackets.
    pub(super) address: StringValue,
    /// `server.port`
    pub(super) port: Option<u16>,
}

/// URLs remembered by each thread.
const REMEMBERED: usize = 16;
/// Longer URLs are not remembered, nor those with a query, which may hold a secret.
const MAX_LENGTH: usize = 256;

#[derive(Default)]
struct Remembered {
    urls: Vec<(Url, Target)>,
    /// The next to be replaced.
    next: usize,
}

impl Target {
    pub(super) fn of(url: &Url) -> Self {
        thread_local! {
            static TARGETS: RefCell<Remembered> = RefCell::default();
        }
        if url.query().is_some() || url.as_str().len() > MAX_LENGTH || url.password().is_some() {
            return Self::read(url);
        }
        // While the thread is going down there is no memory to look into.
        TARGETS.try_with(|remembered| remembered.borrow_mut().get(url)).unwrap_or_else(|_| Self::read(url))
    }

    fn read(url: &Url) -> Self {
        let shared = |text: String| StringValue::from(std::sync::Arc::<str>::from(text));
        let address = match url.host() {
            Some(::url::Host::Ipv6(address)) => address.to_string(),
            Some(host) => host.to_string(),
            None => String::new(),
        };
        Self { full: shared(url::redacted(url)), address: shared(address), port: url.port_or_known_default() }
    }
}

impl Remembered {
    fn get(&mut self, url: &Url) -> Target {
        if let Some((_, target)) = self.urls.iter().find(|(known, _)| known == url) {
            return target.clone();
        }
        let target = Target::read(url);
        let entry = (url.clone(), target.clone());
        if self.urls.len() < REMEMBERED {
            self.urls.push(entry);
        } else {
            self.urls[self.next] = entry;
            self.next = (self.next + 1) % REMEMBERED;
        }
        target
    }
}

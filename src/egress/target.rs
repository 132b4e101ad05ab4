//! What a request's method and URL say on a span and in metrics, kept for the few URLs that a server calls again
//! and again.

use std::cell::RefCell;
use std::sync::Arc;

use opentelemetry::StringValue;
use reqwest::Url;

use super::url;
use crate::ingress::{Method, Text, gym_template};
use crate::metrics::{Durations, HttpClient};

pub(super) struct Target {
    pub(super) method: Method,
    /// The span's name: the method, with the template of a Gym route.
    pub(super) name: Text,
    /// `url.template` of a Gym route
    pub(super) template: Option<Text>,
    /// `url.full`
    pub(super) full: StringValue,
    /// `server.address`: a name, or an IP address without brackets.
    pub(super) address: StringValue,
    /// `server.port`
    pub(super) port: Option<u16>,
    pub(super) durations: Arc<Durations>,
}

/// URLs remembered by each thread.
const REMEMBERED: usize = 16;
/// Longer URLs are not remembered, nor those that may hold a secret.
const MAX_LENGTH: usize = 256;

struct Entry {
    method: Method,
    client: u64,
    url: Url,
    target: Arc<Target>,
}

#[derive(Default)]
struct Remembered {
    entries: Vec<Entry>,
    /// The next to be replaced.
    next: usize,
}

impl Target {
    #[inline]
    pub(super) fn of(method: Method, url: &Url, client: &HttpClient) -> Arc<Self> {
        thread_local! {
            static TARGETS: RefCell<Remembered> = RefCell::default();
        }
        // A thread that is going down has no memory any more.
        TARGETS
            .try_with(|remembered| remembered.borrow_mut().get(method, url, client))
            .unwrap_or_else(|_| Arc::new(Self::read(method, url, client)))
    }

    fn read(method: Method, url: &Url, client: &HttpClient) -> Self {
        let shared = |text: String| StringValue::from(Arc::<str>::from(text));
        let address = match url.host() {
            Some(::url::Host::Ipv6(address)) => address.to_string(),
            Some(host) => host.to_string(),
            None => String::new(),
        };
        let address = shared(address);
        let port = url.port_or_known_default();
        let template = gym_template(url.path());
        let name = match &template {
            Some(template) => Text::new(&format!("{} {}", method.as_name(), template.as_str())),
            None => Text::Interned(method.as_name()),
        };
        let durations = client.durations(method, &address, port);
        Self { method, name, template, full: shared(url::redacted(url)), address, port, durations }
    }
}

impl Remembered {
    fn get(&mut self, method: Method, url: &Url, client: &HttpClient) -> Arc<Target> {
        let known = self
            .entries
            .iter()
            .find(|entry| entry.method == method && entry.url == *url && entry.client == client.id());
        if let Some(entry) = known {
            return entry.target.clone();
        }
        let target = Arc::new(Target::read(method, url, client));
        if url.query().is_none() && url.password().is_none() && url.as_str().len() <= MAX_LENGTH {
            let entry = Entry { method, client: client.id(), url: url.clone(), target: target.clone() };
            if self.entries.len() < REMEMBERED {
                self.entries.push(entry);
            } else {
                self.entries[self.next] = entry;
                self.next = (self.next + 1) % REMEMBERED;
            }
        }
        target
    }
}

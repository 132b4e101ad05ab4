//! Which route a request takes: its template, its Gym meaning, and what is prepared for it.

use std::fmt;
use std::sync::{Arc, OnceLock, PoisonError, RwLock};

use opentelemetry::KeyValue;
use opentelemetry::metrics::Histogram;

use super::http::{Method, Scheme, Version};
use super::text::Text;
use crate::config::ServerType;
use crate::metrics::{LazyHistogram, ModelDialect};
use crate::rollout::{PrefixForm, split_prefix};
use crate::span_group::SpanGroup;

/// What a Gym route does: the span inside the SERVER span.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Semantic {
    Rollout,
    Verify,
    AgentResponses,
    Model(ModelDialect),
}

impl Semantic {
    /// The meaning of `POST path` on a server of this type. `/v1/responses` means one thing on an agent and another on
    /// a model server; where the type is unknown it means nothing.
    fn of(path: &str, server_type: Option<&ServerType>) -> Option<Self> {
        match (path, server_type) {
            ("/run", _) => Some(Semantic::Rollout),
            ("/verify", _) => Some(Semantic::Verify),
            ("/v1/responses", Some(ServerType::ResponsesApiAgents)) => Some(Semantic::AgentResponses),
            ("/v1/responses", Some(ServerType::ResponsesApiModels)) => Some(Semantic::Model(ModelDialect::Responses)),
            ("/v1/chat/completions", _) => Some(Semantic::Model(ModelDialect::ChatCompletions)),
            ("/v1/messages", _) => Some(Semantic::Model(ModelDialect::Messages)),
            _ => None,
        }
    }

    pub(crate) const fn span_name(self) -> &'static str {
        match self {
            Semantic::Rollout => "gym.rollout",
            Semantic::Verify => "gym.verify",
            Semantic::AgentResponses => "gym.agent.responses",
            Semantic::Model(ModelDialect::ChatCompletions) => "gym.model.chat_completions",
            Semantic::Model(ModelDialect::Responses) => "gym.model.responses",
            Semantic::Model(ModelDialect::Messages) => "gym.model.messages",
        }
    }

    pub(crate) const fn group(self) -> SpanGroup {
        match self {
            Semantic::Rollout => SpanGroup::Rollout,
            Semantic::Verify => SpanGroup::Verify,
            Semantic::AgentResponses => SpanGroup::Agent,
            Semantic::Model(_) => SpanGroup::ModelCall,
        }
    }
}

/// Routes of Gym servers, known without a router's help, and the type of server that is sure to have them. On any
/// other the route is only assumed until the answer is there.
const GYM_ROUTES: &[(&str, Option<ServerType>)] = &[
    ("/run", Some(ServerType::ResponsesApiAgents)),
    ("/verify", Some(ServerType::ResourcesServers)),
    ("/seed_session", Some(ServerType::ResourcesServers)),
    ("/aggregate_metrics", None),
    ("/v1/responses", None),
    ("/v1/chat/completions", Some(ServerType::ResponsesApiModels)),
    ("/v1/messages", Some(ServerType::ResponsesApiModels)),
];

/// The template of a Gym server's route, with its rollout prefix if it has one; for callers.
pub(crate) fn gym_template(path: &str) -> Option<Text> {
    let (form, path) = split_prefix(path).map_or((None, path), |(_, form, rest)| (Some(form), rest));
    let (route, _) = GYM_ROUTES.iter().find(|(route, _)| *route == path)?;
    Some(match form {
        None => Text::Interned(route),
        Some(form) => Text::new(&format!("{}{route}", form.template())),
    })
}

/// One route, in one form of the rollout prefix or in none.
pub(crate) struct Route {
    pub(crate) template: Option<Text>,
    /// For `POST`.
    semantic: Option<Semantic>,
    /// Whether the template is a guess from the path: a router may have no such route and answer 404.
    pub(crate) assumed: bool,
    duration: Histogram<f64>,
    methods: [OnceLock<Box<MethodRoute>>; Method::COUNT],
}

/// What is prepared for a method of a route.
pub(crate) struct MethodRoute {
    /// `{method} {template}`
    pub(crate) name: Text,
    /// `http.server.request.duration` of plain `http` answers 200 over HTTP/1.1 and HTTP/2.
    ok: [LazyHistogram; 2],
}

impl Route {
    fn new(template: Option<Text>, semantic: Option<Semantic>, assumed: bool, duration: &Histogram<f64>) -> Arc<Self> {
        Arc::new(Self { template, semantic, assumed, duration: duration.clone(), methods: Default::default() })
    }

    #[inline]
    pub(crate) fn semantic(&self, method: Method) -> Option<Semantic> {
        self.semantic.filter(|_| method == Method::Post)
    }

    #[inline]
    pub(crate) fn method(&self, method: Method) -> &MethodRoute {
        self.methods[method as usize].get_or_init(|| {
            let name = match &self.template {
                Some(template) => Text::new(&format!("{} {}", method.as_name(), template.as_str())),
                None => Text::Interned(method.as_name()),
            };
            let ok = [Version::Http11, Version::Http2].map(|version| {
                let mut attributes = self.duration_attributes(method, Scheme::Http, version);
                attributes.push(KeyValue::new("http.response.status_code", 200));
                LazyHistogram::new(&self.duration, attributes)
            });
            Box::new(MethodRoute { name, ok })
        })
    }

    /// The attributes that are known when a request starts.
    pub(crate) fn duration_attributes(&self, method: Method, scheme: Scheme, version: Version) -> Vec<KeyValue> {
        let mut attributes = Vec::with_capacity(6);
        attributes.push(KeyValue::new("http.request.method", method.as_attribute()));
        attributes.push(KeyValue::new("url.scheme", scheme.as_str()));
        attributes.push(KeyValue::new("network.protocol.version", version.as_str()));
        if let Some(template) = &self.template {
            attributes.push(KeyValue::new("http.route", template.value()));
        }
        attributes
    }
}

impl MethodRoute {
    /// The bound histogram of the common case.
    #[inline]
    pub(crate) fn ok(&self, version: Version) -> Option<&LazyHistogram> {
        match version {
            Version::Http11 => Some(&self.ok[0]),
            Version::Http2 => Some(&self.ok[1]),
            _ => None,
        }
    }
}

/// A route in the three forms of its path.
struct Forms([Arc<Route>; 3]);

impl Forms {
    fn get(&self, form: Option<PrefixForm>) -> &Arc<Route> {
        &self.0[form_index(form)]
    }
}

/// Plain paths, by length: one comparison of bytes finds a path, where a hash would cost several times that.
struct Paths<T> {
    by_length: Vec<Vec<(Box<str>, T)>>,
    len: usize,
}

impl<T> Paths<T> {
    /// Adds a path unless it is there.
    fn insert(&mut self, path: &str, value: T) {
        if self.by_length.len() <= path.len() {
            self.by_length.resize_with(path.len() + 1, Vec::new);
        }
        if self.get(path).is_none() {
            self.by_length[path.len()].push((path.into(), value));
            self.len += 1;
        }
    }

    #[inline]
    fn get(&self, path: &str) -> Option<&T> {
        self.by_length.get(path.len())?.iter().find(|(known, _)| **known == *path).map(|(_, value)| value)
    }
}

impl<T> Default for Paths<T> {
    fn default() -> Self {
        Self { by_length: Vec::new(), len: 0 }
    }
}

const FORMS: [Option<PrefixForm>; 3] = [None, Some(PrefixForm::Plain), Some(PrefixForm::TokenCapture)];

fn form_index(form: Option<PrefixForm>) -> usize {
    match form {
        None => 0,
        Some(PrefixForm::Plain) => 1,
        Some(PrefixForm::TokenCapture) => 2,
    }
}

/// All routes a layer knows: Gym's and the user's by path, and whatever a router has matched.
pub(crate) struct Routes {
    server_type: Option<ServerType>,
    duration: Histogram<f64>,
    unmatched: Arc<Route>,
    paths: Paths<Forms>,
    templates: matchit::Router<Forms>,
    matched: [RwLock<Paths<Arc<Route>>>; 3],
}

/// Templates come from a router's code and are few. Should something make them up, the table stops growing.
const MAX_MATCHED: usize = 4096;
const MAX_TEMPLATE: usize = 4096;

impl Routes {
    pub(crate) fn new(server_type: Option<&ServerType>, duration: &Histogram<f64>, templates: &[String]) -> Self {
        let mut routes = Self {
            server_type: server_type.cloned(),
            duration: duration.clone(),
            unmatched: Route::new(None, None, false, duration),
            paths: Paths::default(),
            templates: matchit::Router::new(),
            matched: Default::default(),
        };
        for template in templates {
            let forms = routes.forms(template, false);
            if !template.contains(['{', '}']) && template.len() <= MAX_TEMPLATE {
                routes.paths.insert(template, forms);
            } else if let Err(error) = routes.templates.insert(template, forms) {
                crate::diagnostics::warn_once(&format!("route template {template} is not used: {error}"));
            }
        }
        for (path, owner) in GYM_ROUTES {
            let sure = owner.is_some() && owner.as_ref() == server_type
                || *path == "/v1/responses"
                    && matches!(server_type, Some(ServerType::ResponsesApiAgents | ServerType::ResponsesApiModels));
            let forms = routes.forms(path, !sure);
            routes.paths.insert(path, forms);
        }
        routes
    }

    fn forms(&self, template: &str, assumed: bool) -> Forms {
        Forms(FORMS.map(|form| self.make(form, template, assumed)))
    }

    fn make(&self, form: Option<PrefixForm>, template: &str, assumed: bool) -> Arc<Route> {
        let semantic = Semantic::of(template, self.server_type.as_ref());
        let full = match form {
            None => Text::new(template),
            Some(form) => Text::new(&format!("{}{template}", form.template())),
        };
        Route::new(Some(full), semantic, assumed, &self.duration)
    }

    /// By the path without its rollout prefix; exact paths go before templates with parameters.
    #[inline]
    pub(crate) fn by_path(&self, form: Option<PrefixForm>, path: &str) -> &Arc<Route> {
        match self.paths.get(path) {
            Some(forms) => forms.get(form),
            None => self.templates.at(path).map_or(&self.unmatched, |found| found.value.get(form)),
        }
    }

    /// By the template that a router matched.
    pub(crate) fn by_template(&self, form: Option<PrefixForm>, template: &str) -> Arc<Route> {
        let table = &self.matched[form_index(form)];
        if let Some(route) = table.read().unwrap_or_else(PoisonError::into_inner).get(template) {
            return route.clone();
        }
        let route = self.make(form, template, false);
        let mut table = table.write().unwrap_or_else(PoisonError::into_inner);
        if table.len < MAX_MATCHED && template.len() <= MAX_TEMPLATE {
            table.insert(template, route.clone());
        }
        route
    }

    /// The route of no route: a name of the method alone.
    pub(crate) fn unmatched(&self) -> &Arc<Route> {
        &self.unmatched
    }
}

impl fmt::Debug for Routes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Routes").field("server_type", &self.server_type).finish_non_exhaustive()
    }
}

impl fmt::Debug for Route {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Route")
            .field("template", &self.template)
            .field("semantic", &self.semantic)
            .finish_non_exhaustive()
    }
}

//! Fields of `tracing` spans and events as OpenTelemetry values.

use std::error::Error;
use std::fmt::{Debug, Write as _};

use opentelemetry::logs::AnyValue;
use opentelemetry::{Array, Key, KeyValue, Value};
use tracing::field::{Field, Visit};

/// What an event says.
#[derive(Default)]
pub(super) struct EventFields {
    pub(super) message: Option<String>,
    /// Each key once; the last value wins.
    pub(super) attributes: Vec<KeyValue>,
    /// A field that tells of an error was among them; its text.
    pub(super) error: Option<String>,
}

impl EventFields {
    fn put(&mut self, key: impl Into<Key>, value: impl Into<Value>) {
        let (key, value) = (key.into(), value.into());
        match self.attributes.iter_mut().find(|known| known.key == key) {
            Some(known) => known.value = value,
            None => self.attributes.push(KeyValue::new(key, value)),
        }
    }

    fn text(&mut self, field: &Field, text: String) {
        match field.name() {
            "message" => self.message = Some(text),
            // Where a record of the `log` crate came from: in its metadata already.
            name if name.starts_with("log.") => {}
            // `#[instrument(err)]` and many an `error!` give errors as text.
            "error" => {
                self.put("exception.message", text.clone());
                self.error = Some(text);
            }
            name => self.put(name, text),
        }
    }

    fn integer(&mut self, field: &Field, value: Result<i64, String>) {
        if field.name().starts_with("log.") {
            return;
        }
        match value {
            Ok(value) => self.put(field.name(), value),
            Err(text) => self.put(field.name(), text),
        }
    }
}

/// Integers beyond 64 bits with sign have no OpenTelemetry type: they become text.
fn narrow<T: Copy + ToString>(value: T) -> Result<i64, String>
where
    i64: TryFrom<T>,
{
    i64::try_from(value).map_err(|_| value.to_string())
}

impl Visit for EventFields {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.text(field, format!("{value:?}"));
    }
    fn record_str(&mut self, field: &Field, value: &str) {
        self.text(field, value.to_owned());
    }
    fn record_error(&mut self, _field: &Field, value: &(dyn Error + 'static)) {
        let mut text = value.to_string();
        let mut source = value.source();
        while let Some(error) = source {
            let _ = write!(text, ": {error}");
            source = error.source();
        }
        self.put("exception.message", text.clone());
        self.error = Some(text);
    }
    fn record_bool(&mut self, field: &Field, value: bool) {
        self.put(field.name(), value);
    }
    fn record_f64(&mut self, field: &Field, value: f64) {
        self.put(field.name(), value);
    }
    fn record_i64(&mut self, field: &Field, value: i64) {
        self.integer(field, Ok(value));
    }
    fn record_u64(&mut self, field: &Field, value: u64) {
        self.integer(field, narrow(value));
    }
    fn record_i128(&mut self, field: &Field, value: i128) {
        self.integer(field, narrow(value));
    }
    fn record_u128(&mut self, field: &Field, value: u128) {
        self.integer(field, narrow(value));
    }
}

/// The integers that tracing-opentelemetry makes text of, and that fit OpenTelemetry's integers.
#[derive(Debug, Default)]
pub(super) struct WideIntegers(pub(super) Vec<KeyValue>);

impl WideIntegers {
    fn put(&mut self, field: &Field, value: Result<i64, String>) {
        self.forget(field);
        if let Ok(value) = value {
            self.0.push(KeyValue::new(field.name(), value));
        }
    }

    /// The field has got another value since.
    fn forget(&mut self, field: &Field) {
        self.0.retain(|known| known.key.as_str() != field.name());
    }
}

impl Visit for WideIntegers {
    fn record_debug(&mut self, field: &Field, _value: &dyn Debug) {
        self.forget(field);
    }
    fn record_u64(&mut self, field: &Field, value: u64) {
        self.put(field, narrow(value));
    }
    fn record_i128(&mut self, field: &Field, value: i128) {
        self.put(field, narrow(value));
    }
    fn record_u128(&mut self, field: &Field, value: u128) {
        self.put(field, narrow(value));
    }
}

/// The same value in the logs' type.
pub(super) fn any_value(value: Value) -> AnyValue {
    match value {
        Value::Bool(v) => AnyValue::Boolean(v),
        Value::I64(v) => AnyValue::Int(v),
        Value::F64(v) => AnyValue::Double(v),
        Value::String(v) => AnyValue::String(v),
        Value::Array(Array::String(v)) => AnyValue::ListAny(Box::new(v.into_iter().map(AnyValue::String).collect())),
        other => AnyValue::String(other.as_str().into_owned().into()),
    }
}

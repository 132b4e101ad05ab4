//! What can be wrong with a configuration block.

use std::fmt;

/// A configuration that cannot be used, and where. Values are never shown: they may be secret.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}: {kind}", Location(self))]
#[non_exhaustive]
pub struct ConfigError {
    field: String,
    kind: ConfigErrorKind,
}

/// What is wrong with a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigErrorKind {
    /// A text or number that is no boolean.
    #[error("not a boolean")]
    BoolParsing,
    /// Neither a boolean nor anything that can be read as one.
    #[error("must be a boolean")]
    BoolType,
    /// Not a text.
    #[error("must be a text")]
    StringType,
    /// Not a mapping.
    #[error("must be a mapping")]
    ModelType,
    /// A text that is no number.
    #[error("not a number")]
    FloatParsing,
    /// Neither a number nor anything that can be read as one.
    #[error("must be a number")]
    FloatType,
    /// Zero, negative, or not a number.
    #[error("must be greater than 0")]
    GreaterThan,
    /// An interpolation that cannot be resolved: the variable is unset or blank and there is no default,
    /// or it is not of the form `${oc.env:NAME}` or `${oc.env:NAME,default}`.
    #[error("cannot resolve the interpolation")]
    Interpolation,
    /// The text is neither JSON nor YAML. Line and column count from 1; 0 where the parser cannot tell.
    #[error("neither JSON nor YAML (line {line}, column {column})")]
    Syntax {
        /// Where the parser stopped.
        line: usize,
        /// Where in that line.
        column: usize,
    },
}

impl ConfigErrorKind {
    /// The name pydantic gives to the same error upstream; `interpolation` and `syntax` are this crate's.
    pub fn as_str(self) -> &'static str {
        match self {
            ConfigErrorKind::BoolParsing => "bool_parsing",
            ConfigErrorKind::BoolType => "bool_type",
            ConfigErrorKind::StringType => "string_type",
            ConfigErrorKind::ModelType => "model_type",
            ConfigErrorKind::FloatParsing => "float_parsing",
            ConfigErrorKind::FloatType => "float_type",
            ConfigErrorKind::GreaterThan => "greater_than",
            ConfigErrorKind::Interpolation => "interpolation",
            ConfigErrorKind::Syntax { .. } => "syntax",
        }
    }
}

impl ConfigError {
    pub(crate) fn new(field: &str, kind: ConfigErrorKind) -> Self {
        Self { field: field.to_owned(), kind }
    }

    /// The error one level further out: its field gets `outer` in front.
    pub(crate) fn within(mut self, outer: &str) -> Self {
        self.field = if self.field.is_empty() { outer.to_owned() } else { format!("{outer}.{}", self.field) };
        self
    }

    /// The field within the block, such as `memory_profiling.interval_seconds`; empty for the block itself.
    pub fn field(&self) -> &str {
        &self.field
    }

    /// What is wrong with it.
    pub fn kind(&self) -> ConfigErrorKind {
        self.kind
    }
}

/// The field's place in a Gym configuration.
struct Location<'a>(&'a ConfigError);

impl fmt::Display for Location<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.0.kind, self.0.field.as_str()) {
            (ConfigErrorKind::Syntax { .. }, _) => f.write_str("the configuration"),
            (_, "") => f.write_str(super::TELEMETRY_CONFIG_KEY),
            (_, field) => write!(f, "{}.{field}", super::TELEMETRY_CONFIG_KEY),
        }
    }
}

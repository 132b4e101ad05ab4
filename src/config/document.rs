//! A Gym configuration as text or value, of which one top-level entry is wanted.

use std::fmt;

use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};

use super::error::{ConfigError, ConfigErrorKind};

/// A Gym configuration: JSON or YAML text, or a value.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum GlobalConfig<'a> {
    /// JSON or YAML text.
    Text(&'a str),
    /// A parsed value.
    Value(&'a serde_json::Value),
}

impl<'a> From<&'a str> for GlobalConfig<'a> {
    fn from(text: &'a str) -> Self {
        GlobalConfig::Text(text)
    }
}

impl<'a> From<&'a String> for GlobalConfig<'a> {
    fn from(text: &'a String) -> Self {
        GlobalConfig::Text(text)
    }
}

impl<'a> From<&'a serde_json::Value> for GlobalConfig<'a> {
    fn from(value: &'a serde_json::Value) -> Self {
        GlobalConfig::Value(value)
    }
}

impl GlobalConfig<'_> {
    /// The entry under `key`; everything else is skipped, not kept. `None` when there is no such entry
    /// or no configuration at all (an empty document).
    pub(crate) fn entry(self, key: &str) -> Result<Option<Node>, ConfigError> {
        match self {
            GlobalConfig::Text(text) => {
                // Whatever is JSON is taken as JSON; YAML flow mappings begin alike.
                if text.trim_start().starts_with('{') {
                    let mut json = serde_json::Deserializer::from_str(text);
                    if let Ok(found) = Entry(key).deserialize(&mut json)
                        && json.end().is_ok()
                    {
                        return found.map_err(|kind| ConfigError::new("", kind));
                    }
                }
                if !flow_is_shallow(text) {
                    return Err(ConfigError::new("", ConfigErrorKind::Syntax { line: 0, column: 0 }));
                }
                match Entry(key).deserialize(serde_norway::Deserializer::from_str(text)) {
                    Ok(found) => found.map_err(|kind| ConfigError::new("", kind)),
                    Err(error) => {
                        let (line, column) = error.location().map_or((0, 0), |at| (at.line(), at.column()));
                        Err(ConfigError::new("", ConfigErrorKind::Syntax { line, column }))
                    }
                }
            }
            GlobalConfig::Value(value) => match Entry(key).deserialize(value) {
                Ok(found) => found.map_err(|kind| ConfigError::new("", kind)),
                Err(_) => Err(ConfigError::new("", ConfigErrorKind::Syntax { line: 0, column: 0 })),
            },
        }
    }
}

/// Deepest nesting of brackets in YAML. The parser's own limit comes too late: its scanner takes time
/// that grows with the square of the depth, minutes for a hostile megabyte.
const MAX_FLOW_DEPTH: usize = 512;

/// Whether brackets nest no deeper than [`MAX_FLOW_DEPTH`]. Those within texts count as well; no
/// configuration has so many that are never closed.
fn flow_is_shallow(text: &str) -> bool {
    let mut depth = 0usize;
    text.bytes().all(|b| {
        match b {
            b'{' | b'[' => depth += 1,
            b'}' | b']' => depth = depth.saturating_sub(1),
            _ => {}
        }
        depth <= MAX_FLOW_DEPTH
    })
}

/// A value of any format, as far as configuration looks into it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Node {
    Null,
    Bool(bool),
    /// A whole number; one that does not fit is a float.
    Int(i64),
    Float(f64),
    Text(String),
    /// A list; nothing in a configuration block is one.
    List,
    /// Entries with text keys, in their order.
    Map(Vec<(String, Node)>),
}

impl Node {
    /// The entry under `key` of a mapping: of a repeated key the last one, else one that a YAML merge
    /// key (`<<`) brings in.
    pub(crate) fn get(&self, key: &str) -> Option<&Node> {
        let Node::Map(entries) = self else { return None };
        let find = |wanted: &str| entries.iter().rev().find(|(name, _)| name == wanted).map(|(_, node)| node);
        find(key).or_else(|| find("<<").and_then(|merged| merged.get(key)))
    }
}

impl<'de> Deserialize<'de> for Node {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(NodeVisitor)
    }
}

struct NodeVisitor;

impl<'de> Visitor<'de> for NodeVisitor {
    type Value = Node;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }
    fn visit_unit<E>(self) -> Result<Node, E> {
        Ok(Node::Null)
    }
    fn visit_none<E>(self) -> Result<Node, E> {
        Ok(Node::Null)
    }
    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Node, D::Error> {
        deserializer.deserialize_any(self)
    }
    fn visit_newtype_struct<D: Deserializer<'de>>(self, deserializer: D) -> Result<Node, D::Error> {
        deserializer.deserialize_any(self)
    }
    fn visit_bool<E>(self, value: bool) -> Result<Node, E> {
        Ok(Node::Bool(value))
    }
    fn visit_i64<E>(self, value: i64) -> Result<Node, E> {
        Ok(Node::Int(value))
    }
    fn visit_u64<E>(self, value: u64) -> Result<Node, E> {
        Ok(i64::try_from(value).map_or(Node::Float(value as f64), Node::Int))
    }
    fn visit_i128<E>(self, value: i128) -> Result<Node, E> {
        Ok(i64::try_from(value).map_or(Node::Float(value as f64), Node::Int))
    }
    fn visit_u128<E>(self, value: u128) -> Result<Node, E> {
        Ok(i64::try_from(value).map_or(Node::Float(value as f64), Node::Int))
    }
    fn visit_f64<E>(self, value: f64) -> Result<Node, E> {
        Ok(Node::Float(value))
    }
    fn visit_str<E>(self, value: &str) -> Result<Node, E> {
        Ok(Node::Text(value.to_owned()))
    }
    fn visit_string<E>(self, value: String) -> Result<Node, E> {
        Ok(Node::Text(value))
    }
    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Node, A::Error> {
        while seq.next_element::<IgnoredAny>()?.is_some() {}
        Ok(Node::List)
    }
    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Node, A::Error> {
        let mut entries = Vec::new();
        while let Some(key) = map.next_key::<Node>()? {
            match key {
                Node::Text(key) => entries.push((key, map.next_value()?)),
                _ => {
                    map.next_value::<IgnoredAny>()?;
                }
            }
        }
        Ok(Node::Map(entries))
    }
    fn visit_enum<A: serde::de::EnumAccess<'de>>(self, data: A) -> Result<Node, A::Error> {
        // A YAML value with a tag of the application's: the value counts.
        let (_, value) = data.variant::<IgnoredAny>()?;
        serde::de::VariantAccess::newtype_variant(value)
    }
}

/// Finds one entry of a mapping and skips the others. The inner error tells that the document is no
/// mapping.
struct Entry<'k>(&'k str);

type Found = Result<Option<Node>, ConfigErrorKind>;

impl<'de> DeserializeSeed<'de> for Entry<'_> {
    type Value = Found;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Found, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Entry<'_> {
    type Value = Found;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a mapping")
    }
    fn visit_unit<E>(self) -> Result<Found, E> {
        Ok(Ok(None))
    }
    fn visit_none<E>(self) -> Result<Found, E> {
        Ok(Ok(None))
    }
    fn visit_bool<E>(self, _: bool) -> Result<Found, E> {
        Ok(Err(ConfigErrorKind::ModelType))
    }
    fn visit_i64<E>(self, _: i64) -> Result<Found, E> {
        Ok(Err(ConfigErrorKind::ModelType))
    }
    fn visit_u64<E>(self, _: u64) -> Result<Found, E> {
        Ok(Err(ConfigErrorKind::ModelType))
    }
    fn visit_f64<E>(self, _: f64) -> Result<Found, E> {
        Ok(Err(ConfigErrorKind::ModelType))
    }
    fn visit_str<E>(self, _: &str) -> Result<Found, E> {
        Ok(Err(ConfigErrorKind::ModelType))
    }
    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Found, A::Error> {
        while seq.next_element::<IgnoredAny>()?.is_some() {}
        Ok(Err(ConfigErrorKind::ModelType))
    }
    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Found, A::Error> {
        let mut found = None;
        while let Some(key) = map.next_key::<Node>()? {
            if matches!(&key, Node::Text(key) if key == self.0) {
                found = Some(map.next_value()?);
            } else {
                map.next_value::<IgnoredAny>()?;
            }
        }
        Ok(Ok(found))
    }
}

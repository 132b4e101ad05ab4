//! OmegaConf's `oc.env` interpolations, the only ones a `telemetry:` block may hold.

use super::Environment;
use super::parse::strip;

/// Deepest nesting of defaults that are interpolations themselves.
const MAX_DEPTH: usize = 8;

/// Whether a text holds something to resolve (or an escaped `\${`).
pub(crate) fn has_interpolation(text: &str) -> bool {
    text.contains("${")
}

/// Replaces every `${oc.env:NAME}` and `${oc.env:NAME,default}` of a text. A blank variable is an unset
/// one. The default may be quoted, an interpolation, or `null`, which makes the whole value null
/// (`Ok(None)`). `\${` stands for the text `${`. What a variable holds is not looked into again.
///
/// An interpolation that cannot be resolved is an error: its text must never pass for a value.
pub(crate) fn resolve(text: &str, env: &Environment) -> Result<Option<String>, Unresolved> {
    replace(text, env, 0)
}

/// An interpolation of another kind, a broken one, or one of an unset variable without a default.
#[derive(Debug, PartialEq)]
pub(crate) struct Unresolved;

fn replace(text: &str, env: &Environment, depth: usize) -> Result<Option<String>, Unresolved> {
    let mut resolved = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(start) = rest.find("${") {
        let before = &rest[..start];
        let backslashes = before.len() - before.trim_end_matches('\\').len();
        // Two backslashes before an interpolation stand for one; a single one takes its meaning away.
        resolved.push_str(&before[..before.len() - backslashes.div_ceil(2)]);
        if backslashes % 2 == 1 {
            resolved.push_str("${");
            rest = &rest[start + 2..];
            continue;
        }
        let body = &rest[start + 2..];
        let end = closing_brace(body).ok_or(Unresolved)?;
        let value = variable(&body[..end], env, depth)?;
        rest = &body[end + 1..];
        match value {
            Some(value) => resolved.push_str(&value),
            None if start == 0 && rest.is_empty() => return Ok(None),
            None => return Err(Unresolved),
        }
    }
    resolved.push_str(rest);
    Ok(Some(resolved))
}

/// Where the interpolation ends whose text begins here: nested ones and quotes are skipped.
fn closing_brace(body: &str) -> Option<usize> {
    let mut depth = 0usize;
    scan(body, |at, c| match c {
        '{' => {
            depth += 1;
            None
        }
        '}' if depth == 0 => Some(at),
        '}' => {
            depth -= 1;
            None
        }
        _ => None,
    })
}

/// Goes through the characters outside quotes until `stop` gives something.
fn scan<T>(text: &str, mut stop: impl FnMut(usize, char) -> Option<T>) -> Option<T> {
    let mut quote = None;
    let mut escaped = false;
    for (at, c) in text.char_indices() {
        match quote {
            _ if escaped => escaped = false,
            _ if c == '\\' => escaped = true,
            Some(open) if c == open => quote = None,
            Some(_) => {}
            None if c == '\'' || c == '"' => quote = Some(c),
            None => {
                if let Some(found) = stop(at, c) {
                    return Some(found);
                }
            }
        }
    }
    None
}

/// The value of what stands between the braces.
fn variable(body: &str, env: &Environment, depth: usize) -> Result<Option<String>, Unresolved> {
    let (resolver, arguments) = body.split_once(':').ok_or(Unresolved)?;
    if strip(resolver) != "oc.env" || depth >= MAX_DEPTH {
        return Err(Unresolved);
    }
    let (name, default) = match top_level_comma(arguments) {
        Some(at) => (&arguments[..at], Some(&arguments[at + 1..])),
        None => (arguments, None),
    };
    let name = unquote(strip(name)).unwrap_or_else(|| strip(name).to_owned());
    if name.is_empty() {
        return Err(Unresolved);
    }
    if let Some(value) = env.get(&name).and_then(|_| env.raw(&name)) {
        return Ok(Some(value.to_owned()));
    }
    let default = strip(default.ok_or(Unresolved)?);
    if top_level_comma(default).is_some() {
        return Err(Unresolved);
    }
    match unquote(default) {
        Some(quoted) => replace(&quoted, env, depth + 1),
        None if default == "null" => Ok(None),
        None => replace(default, env, depth + 1),
    }
}

/// The first comma that separates arguments.
fn top_level_comma(arguments: &str) -> Option<usize> {
    let mut depth = 0usize;
    scan(arguments, |at, c| {
        match c {
            '{' | '[' => depth += 1,
            '}' | ']' => depth = depth.saturating_sub(1),
            ',' if depth == 0 => return Some(at),
            _ => {}
        }
        None
    })
}

/// The text within quotes, with escaped quotes and backslashes made plain; `None` when it is not quoted.
fn unquote(text: &str) -> Option<String> {
    let quote = text.chars().next().filter(|c| matches!(c, '\'' | '"'))?;
    let inner = text.strip_prefix(quote)?.strip_suffix(quote)?;
    let mut plain = String::with_capacity(inner.len());
    let mut chars = inner.chars().peekable();
    while let Some(c) = chars.next() {
        match (c, chars.peek()) {
            ('\\', Some(&next)) if next == quote || next == '\\' => {
                plain.push(next);
                chars.next();
            }
            _ => plain.push(c),
        }
    }
    Some(plain)
}

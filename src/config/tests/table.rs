//! The table of variables, its documentation and the defaults in code say the same.

use std::collections::BTreeSet;

use crate::config::settings::Settings;
use crate::config::variables::{self, VariableInfo};
use crate::config::{Environment, is_telemetry_env_enabled_in};

/// A default in parentheses is a description, not a value.
fn is_value(info: &VariableInfo) -> bool {
    !info.default.starts_with('(')
}

#[test]
fn every_default_of_the_table_is_what_unset_means() {
    let unset = Environment::default();
    let (mut by_code, _) = Settings::resolve(&unset, None);
    let written_out: Environment = variables::all().filter(is_value).map(|v| (v.name, v.default)).collect();
    let (by_table, warnings) = Settings::resolve(&written_out, None);
    assert_eq!(warnings, [""; 0]);
    // The run id is generated.
    assert_ne!(by_code.run_id, by_table.run_id);
    by_code.run_id.clone_from(&by_table.run_id);
    assert_eq!(by_code, by_table);
    assert_eq!(by_code, Settings { run_id: by_table.run_id, ..Settings::default() });
    assert!(!is_telemetry_env_enabled_in(&written_out));
}

#[test]
fn every_variable_stands_in_the_table_once() {
    let names: Vec<&str> = variables::all().flat_map(|v| [Some(v.name), v.fallback]).flatten().collect();
    assert_eq!(names.iter().collect::<BTreeSet<_>>().len(), names.len());
    for info in variables::all() {
        assert!(!info.effect.is_empty() && !info.default.is_empty(), "{}", info.name);
        // Upstream's fallbacks: the same name under the older prefix.
        if let Some(fallback) = info.fallback.filter(|f| f.starts_with("NEMO_LENS_")) {
            assert_eq!(info.name.strip_prefix("NEMO_GYM_OTEL_"), fallback.strip_prefix("NEMO_LENS_"));
        }
    }
}

#[test]
fn documentation_and_table_agree() {
    let documentation = include_str!("../../../docs/configuration.md");
    let documented: Vec<&str> = documentation.lines().filter(|line| line.starts_with("| `")).collect();
    let table: Vec<String> = variables::all().map(|v| row(&v)).collect();
    for (documented, row) in documented.iter().zip(&table) {
        assert_eq!(documented, row);
    }
    assert_eq!(documented.len(), table.len(), "the rows are:\n{}", table.join("\n"));
}

fn row(info: &VariableInfo) -> String {
    let name = match info.fallback {
        Some(fallback) => format!("`{}`, else `{fallback}`", info.name),
        None => format!("`{}`", info.name),
    };
    let default =
        if is_value(info) { format!("`{}`", info.default) } else { info.default.trim_matches(['(', ')']).to_owned() };
    format!("| {name} | {default} | {} |", info.effect)
}

/// A variable named anywhere in the crate stands in the table: none is read past it.
#[test]
fn no_variable_is_read_past_the_table() {
    let known: BTreeSet<&str> = variables::all().flat_map(|v| [Some(v.name), v.fallback]).flatten().collect();
    let mut found = 0;
    let mut folders = vec![std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src")];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).expect("a folder of sources").map(|e| e.expect("an entry").path()) {
            if entry.is_dir() {
                folders.push(entry);
                continue;
            }
            // Tests name variables that do not exist.
            if entry.components().any(|part| part.as_os_str() == "tests" || part.as_os_str() == "tests.rs") {
                continue;
            }
            let source = std::fs::read_to_string(&entry).expect("a source");
            let production = source.split("#[cfg(test)]").next().unwrap_or_default();
            for literal in production.split('"').filter(|text| is_variable(text)) {
                found += 1;
                assert!(known.contains(literal), "{literal} in {}", entry.display());
            }
        }
    }
    assert!(found > 0);
}

fn is_variable(text: &str) -> bool {
    let prefixed = ["OTEL_", "NEMO_GYM_", "NEMO_LENS_"].iter().any(|prefix| text.starts_with(prefix));
    let upper = text.bytes().all(|b| b.is_ascii_uppercase() || b.is_ascii_digit() || b == b'_');
    prefixed && upper && !text.ends_with('_')
}

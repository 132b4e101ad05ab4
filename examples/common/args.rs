//! Command lines of the form `--name value` and `--flag`.

use std::collections::BTreeMap;
use std::str::FromStr;

/// Parsed arguments.
#[derive(Clone, Debug, Default)]
pub struct Args {
    values: BTreeMap<String, String>,
    flags: Vec<String>,
}

impl Args {
    /// Reads this process's arguments. Ends it with status 2 and the usage text when they are wrong, with 0 on `--help`.
    pub fn from_process(usage: &str, options: &[&str], flags: &[&str]) -> Self {
        Self::parse(std::env::args().skip(1), options, flags).unwrap_or_else(|message| {
            eprintln!("{message}{}{usage}", if message.is_empty() { "" } else { "\n" });
            std::process::exit(if message.is_empty() { 0 } else { 2 })
        })
    }

    fn parse(arguments: impl Iterator<Item = String>, options: &[&str], flags: &[&str]) -> Result<Self, String> {
        let mut args = Self::default();
        let mut arguments = arguments;
        while let Some(argument) = arguments.next() {
            let (name, inline) = match argument.split_once('=') {
                Some((name, value)) => (name.to_owned(), Some(value.to_owned())),
                None => (argument, None),
            };
            let Some(bare) = name.strip_prefix("--") else { return Err(format!("unexpected argument {name:?}")) };
            if bare == "help" {
                return Err(String::new());
            } else if flags.contains(&bare) && inline.is_none() {
                args.flags.push(bare.to_owned());
            } else if options.contains(&bare) {
                let value = inline.or_else(|| arguments.next()).ok_or_else(|| format!("--{bare} needs a value"))?;
                args.values.insert(bare.to_owned(), value);
            } else {
                return Err(format!("unknown option --{bare}"));
            }
        }
        Ok(args)
    }

    /// Whether a flag was given.
    pub fn flag(&self, name: &str) -> bool {
        self.flags.iter().any(|flag| flag == name)
    }

    /// An option's value.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.values.get(name).map(String::as_str)
    }

    /// An option's value as a number or other type; ends the process with status 2 when it is none.
    pub fn get_or<T: FromStr>(&self, name: &str, default: T) -> T {
        match self.get(name).map(str::parse) {
            None => default,
            Some(Ok(value)) => value,
            Some(Err(_)) => Self::fail(&format!("--{name}: not a valid value")),
        }
    }

    /// A base URL without its trailing slash; ends the process with status 2 when it is missing or none.
    pub fn base_url(&self, name: &str) -> String {
        let Some(text) = self.get(name) else { Self::fail(&format!("--{name} is needed")) };
        match reqwest::Url::parse(text) {
            Ok(url) if url.has_host() => text.trim_end_matches('/').to_owned(),
            _ => Self::fail(&format!("--{name}: not a URL")),
        }
    }

    fn fail(message: &str) -> ! {
        eprintln!("{message}");
        std::process::exit(2)
    }
}

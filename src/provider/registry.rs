//! The providers that a daemon knows, by name: `scripted` always, the well-known ones from the environment, more from the
//! config.
//! It reads key files, and the environment through what it is handed; it sends nothing.

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use secrecy::SecretString;
use serde::Deserialize;

use super::exchange::{Client, Family};
use super::gemini::Gemini;
use super::http::{self, Auth, Timeouts};
use super::ollama::Ollama;
use super::openai::Chat;
use super::responses::Responses;
use super::scripted::ScriptedProvider;
use super::{Provider, anthropic, gemini};

/// The name of the provider that plays scripts.
const SCRIPTED: &str = "scripted";
/// The providers that are there without configuration: name, what it speaks, and where it is unless told otherwise.
const KNOWN: [(&str, Kind, &str); 4] = [
    ("openai", Kind::Openai, "https://api.openai.com/v1"),
    ("anthropic", Kind::Anthropic, "https://api.anthropic.com"),
    ("gemini", Kind::Gemini, "https://generativelanguage.googleapis.com/v1beta"),
    ("ollama", Kind::Ollama, "http://127.0.0.1:11434"),
];
/// The largest key file, in bytes: a larger file is the wrong one.
const KEY_BYTES_MAX: u64 = 16 * 1024;

/// The `providers` part of the daemon's config: endpoints by name.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(transparent)]
pub struct Config {
    /// What is known under each name. A well-known provider can be set here too; what it leaves out comes from the
    /// environment.
    pub endpoints: BTreeMap<String, EndpointConfig>,
}

/// One endpoint in the config. Keys never stand in it, only where they are.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct EndpointConfig {
    /// What it speaks; Chat Completions unless said, or what a well-known provider speaks.
    pub kind: Option<Kind>,
    /// The URL before the family's own paths: `http://127.0.0.1:8000/v1`.
    pub base_url: Option<String>,
    /// The environment variable that holds the key.
    pub key_env: Option<String>,
    /// The file that holds the key; readable by its owner alone.
    pub key_file: Option<PathBuf>,
    /// Until there is a connection, in milliseconds.
    pub connect_timeout_ms: Option<u64>,
    /// Until the first byte of an answer, in milliseconds.
    pub first_byte_timeout_ms: Option<u64>,
    /// Between two pieces of an answer, in milliseconds.
    pub idle_timeout_ms: Option<u64>,
    /// How much of it each of its models is asked at most.
    pub limits: Limits,
}

/// How much each model of a provider is asked at most. What is left out is learned from what the provider refuses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Limits {
    /// Calls under way at once.
    pub concurrency: Option<usize>,
    /// Calls a minute.
    pub requests_per_minute: Option<u32>,
    /// Input plus output tokens a minute. A call counts as what it may use until it is known what it used.
    pub tokens_per_minute: Option<u32>,
}

impl Limits {
    /// Returns the first field that lets nothing through.
    fn zero(self) -> Option<&'static str> {
        let fields = [
            ("concurrency", self.concurrency == Some(0)),
            ("requests_per_minute", self.requests_per_minute == Some(0)),
            ("tokens_per_minute", self.tokens_per_minute == Some(0)),
        ];
        fields.into_iter().find(|(_, is_zero)| *is_zero).map(|(name, _)| name)
    }
}

/// A wire family.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// Chat Completions.
    Openai,
    /// OpenAI's Responses.
    Responses,
    /// Anthropic's Messages.
    Anthropic,
    /// Google's generateContent.
    Gemini,
    /// Ollama's own chat.
    Ollama,
}

impl Kind {
    /// Returns the header in which a key goes out.
    fn auth(self) -> Auth {
        match self {
            Self::Openai | Self::Responses | Self::Ollama => Auth::Bearer,
            Self::Anthropic => Auth::Header(anthropic::KEY_HEADER),
            Self::Gemini => Auth::Header(gemini::KEY_HEADER),
        }
    }

    /// Returns the headers that every request carries, beside the usual ones.
    fn headers(self) -> &'static [(&'static str, &'static str)] {
        match self {
            Self::Openai | Self::Responses | Self::Gemini | Self::Ollama => &[],
            Self::Anthropic => anthropic::HEADERS,
        }
    }

    fn client(self, config: http::Config) -> Result<Arc<dyn Provider>, String> {
        match self {
            Self::Openai => client(config, Chat::of),
            Self::Responses => client(config, |_| Responses),
            Self::Anthropic => client(anthropic::without_version(config), |_| anthropic::Messages),
            Self::Gemini => client(config, |_| Gemini),
            Self::Ollama => client(config, |_| Ollama),
        }
    }
}

fn client<F: Family>(config: http::Config, family: impl FnOnce(&str) -> F) -> Result<Arc<dyn Provider>, String> {
    Ok(Arc::new(Client::new(config, family)?))
}

/// Why a provider cannot be set up.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{place}: {why}")]
pub struct Error {
    /// The place: a path in the config, or an environment variable.
    pub place: String,
    /// What is wrong, and what to do.
    pub why: String,
}

/// The providers that a daemon knows, by name.
#[derive(Clone)]
pub struct Providers {
    by_name: BTreeMap<String, Arc<dyn Provider>>,
    limits: BTreeMap<String, Limits>,
}

impl Providers {
    /// Returns the scripted provider alone.
    pub fn scripted_only() -> Self {
        let scripted: Arc<dyn Provider> = Arc::new(ScriptedProvider);
        Self { by_name: BTreeMap::from([(SCRIPTED.to_owned(), scripted)]), limits: BTreeMap::new() }
    }

    /// Sets up what the config names, `openai` and `scripted`. `env` returns an environment variable's value.
    ///
    /// A missing key is no error here: [`Provider::ready`] names it once a run wants the provider.
    ///
    /// # Errors
    /// The place of the first thing that is wrong.
    pub fn from_env_and_config(env: &dyn Fn(&str) -> Option<String>, config: &Config) -> Result<Self, Error> {
        let mut providers = Self::scripted_only();
        let absent = EndpointConfig::default();
        for (name, _, _) in KNOWN {
            providers.insert(name, endpoint(name, config.endpoints.get(name).unwrap_or(&absent), env)?);
        }
        for (name, endpoint_config) in &config.endpoints {
            if let Some(field) = endpoint_config.limits.zero() {
                let place = format!("providers.{name}.limits.{field}");
                return Err(Error { place, why: "give a number above 0, or leave it out".to_owned() });
            }
            providers.limits.insert(name.clone(), endpoint_config.limits);
            if known(name).is_some() {
                continue;
            }
            let place = format!("providers.{name}");
            if name == SCRIPTED {
                return Err(Error { place, why: "this name is taken by the provider that plays scripts; choose another".to_owned() });
            }
            if name.is_empty() || !name.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_')) {
                return Err(Error { place, why: "a name is made of letters, digits, - and _".to_owned() });
            }
            providers.insert(name, endpoint(name, endpoint_config, env)?);
        }
        Ok(providers)
    }

    /// Adds a provider, or replaces the one of that name.
    pub fn insert(&mut self, name: &str, provider: Arc<dyn Provider>) {
        self.by_name.insert(name.to_owned(), provider);
    }

    /// Returns the provider of that name.
    pub fn get(&self, name: &str) -> Option<Arc<dyn Provider>> {
        self.by_name.get(name).cloned()
    }

    /// Returns how much each model of that provider is asked at most.
    pub fn limits(&self, name: &str) -> Limits {
        self.limits.get(name).copied().unwrap_or_default()
    }

    /// Returns all names.
    pub fn names(&self) -> Vec<String> {
        self.by_name.keys().cloned().collect()
    }
}

fn endpoint(name: &str, config: &EndpointConfig, env: &dyn Fn(&str) -> Option<String>) -> Result<Arc<dyn Provider>, Error> {
    let known = known(name);
    let kind = config.kind.or(known.map(|(kind, _)| kind)).unwrap_or(Kind::Openai);
    let set = |variable: &str| env(variable).map(|value| value.trim().to_owned()).filter(|value| !value.is_empty());
    let prefix = name.to_uppercase().replace('-', "_");
    let url_variable = format!("{prefix}_BASE_URL");
    let (url_place, base_url) = match (&config.base_url, set(&url_variable), known) {
        (Some(url), _, _) => (format!("providers.{name}.base_url"), url.clone()),
        (None, Some(url), _) => (url_variable, url),
        (None, None, Some((_, url))) => (url_variable, url.to_owned()),
        (None, None, None) => {
            return Err(Error {
                place: format!("providers.{name}"),
                why: format!("base_url is missing; set it here or as {url_variable}"),
            });
        }
    };
    let key_variable = config.key_env.clone().unwrap_or_else(|| format!("{prefix}_API_KEY"));
    let (key, key_advice) = match &config.key_file {
        Some(_) if config.key_env.is_some() => {
            return Err(Error { place: format!("providers.{name}"), why: "key_env and key_file are both set; keep one".to_owned() });
        }
        Some(file) => {
            let place = format!("providers.{name}.key_file");
            (
                Some(key_of(file).map_err(|why| Error { place, why })?),
                format!("put a valid key into {}, restart wrend and resume the run", file.display()),
            )
        }
        None => {
            let advice = format!("set {key_variable} to a valid key where wrend is started, restart it and resume the run");
            (set(&key_variable).map(SecretString::from), advice)
        }
    };
    let default = Timeouts::default();
    let timeouts = Timeouts {
        connect_ms: config.connect_timeout_ms.unwrap_or(default.connect_ms),
        first_byte_ms: config.first_byte_timeout_ms.unwrap_or(default.first_byte_ms),
        idle_ms: config.idle_timeout_ms.unwrap_or(default.idle_ms),
    };
    let config = http::Config { name: name.to_owned(), base_url, key, auth: kind.auth(), headers: kind.headers(), key_advice, timeouts };
    kind.client(config).map_err(|why| Error { place: url_place, why })
}

fn known(name: &str) -> Option<(Kind, &'static str)> {
    KNOWN.iter().find(|(known, _, _)| *known == name).map(|(_, kind, url)| (*kind, *url))
}

fn key_of(file: &Path) -> Result<SecretString, String> {
    let found = std::fs::metadata(file).map_err(|error| format!("{} cannot be read: {error}", file.display()))?;
    if found.mode() & 0o077 != 0 {
        return Err(format!("others may read {0}; run `chmod 600 {0}`", file.display()));
    }
    if found.len() > KEY_BYTES_MAX {
        return Err(format!("{} is too large to be a key", file.display()));
    }
    let text = std::fs::read_to_string(file).map_err(|error| format!("{} cannot be read: {error}", file.display()))?;
    match text.trim() {
        "" => Err(format!("{} is empty", file.display())),
        key => Ok(SecretString::from(key.to_owned())),
    }
}

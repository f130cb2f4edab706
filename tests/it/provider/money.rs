//! The price book, the waits that providers ask for, and providers by configuration.

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use http::{HeaderMap, HeaderValue};
use wren::kernel::Usage;
use wren::kernel::agent::KnownModel;
use wren::kernel::event::Abort;
use wren::provider::price::{Book, WrittenBook};
use wren::provider::registry::Config;
use wren::provider::{Providers, fail};

#[test]
fn the_book_knows_its_prices_exactly_and_where_they_are_from() {
    let book = Book::builtin().unwrap();
    assert!(!book.version().is_empty() && !book.sources().is_empty());
    let (price, from) = book.model("openai", "gpt-5-mini").price.unwrap();
    assert_eq!(from, book.version());
    let rates = price.rates;
    assert_eq!((rates.input_pico, rates.cache_read_pico, rates.output_pico, rates.reasoning_pico), (250_000, 25_000, 2_000_000, 2_000_000));
    let usage = Usage { input_tokens: 1000, cache_read_tokens: 400, output_tokens: 100, reasoning_tokens: 60, ..Usage::default() };
    // 600 at 250 nano, 400 at 25, 100 at 2,000.
    assert_eq!(price.cost_usd_nanos(&usage), 150_000 + 10_000 + 200_000);
    assert_eq!(book.model("openai", "gpt-unheard-of"), KnownModel::default());
    assert_eq!(book.model("scripted", "gpt-5-mini"), KnownModel::default());
    for provider in ["openai", "anthropic", "gemini"] {
        let models: Vec<_> = book.models().filter(|(known, _, _)| *known == provider).collect();
        assert!(models.len() > 5 && models.iter().all(|(_, _, known)| known.window_tokens.is_some()), "{provider}");
    }
    // Calls that read more than a bound cost more, all of them: 100,001 at 500 nano and 10 at 2,500.
    let (haiku, _) = book.model("anthropic", "claude-haiku-5-5").price.unwrap();
    let long = Usage { input_tokens: 100_001, output_tokens: 10, ..Usage::default() };
    assert_eq!(haiku.cost_usd_nanos(&long), 100_001 * 500 + 10 * 2500);
}

#[test]
fn a_bound_for_dearer_calls_is_no_negative_number() {
    let yaml = "local: {m: {input: \"1\", output: \"1\", long: {above_tokens: -1, input: \"2\", output: \"2\"}}}";
    let written: WrittenBook = serde_yaml::from_str(yaml).unwrap();
    let error = Book::builtin().unwrap().with_overrides(&written).unwrap_err();
    assert!(error.to_string().starts_with("prices.local.m.long.above_tokens: "), "{error}");
}

#[test]
fn the_config_puts_its_prices_over_the_book() {
    let written: WrittenBook =
        serde_yaml::from_str("openai: {gpt-5-mini: {input: \"0.3\", output: \"3\"}}\nlocal: {m: {input: \"0\", output: \"0\"}}").unwrap();
    let book = Book::builtin().unwrap().with_overrides(&written).unwrap();
    let known = book.model("openai", "gpt-5-mini");
    let (price, from) = known.price.unwrap();
    let rates = price.rates;
    assert_eq!((rates.input_pico, rates.cache_read_pico, rates.output_pico, from.as_str()), (300_000, 300_000, 3_000_000, "config"));
    assert_eq!(known.window_tokens, Some(400_000), "what the config leaves out stays");
    assert_eq!(book.model("local", "m").price.unwrap().0.rates.output_pico, 0);
    assert_eq!(book.model("openai", "gpt-5").price.unwrap().1, book.version());
    for bad in ["-1", "NaN", "1e308", "", "1,5", "$2"] {
        let written: WrittenBook = serde_yaml::from_str(&format!("openai: {{m: {{input: {bad:?}, output: \"1\"}}}}")).unwrap();
        let error = Book::builtin().unwrap().with_overrides(&written).unwrap_err();
        assert_eq!(error.place, "prices.openai.m.input", "{bad}");
    }
}

#[test]
fn waits_are_read_in_every_form_and_bounded() {
    let now = UNIX_EPOCH + Duration::from_secs(1_800_000_000);
    let date = |time: SystemTime| httpdate::fmt_http_date(time);
    let wait = |pairs: &[(&'static str, &str)]| {
        let mut headers = HeaderMap::new();
        for (name, value) in pairs {
            headers.insert(*name, HeaderValue::from_str(value).unwrap());
        }
        fail::retry_after_ms(&headers, now)
    };
    let most = Some(fail::RETRY_AFTER_MS_MAX);
    for (value, right) in [
        ("2", Some(2000)),
        ("2.5", Some(2500)),
        ("0.0001", Some(1)),
        (date(now + Duration::from_secs(3)).as_str(), Some(3000)),
        (date(now - Duration::from_secs(3)).as_str(), None),
        (date(now + Duration::from_secs(365 * 86_400)).as_str(), most),
        ("315360000", most),
        ("99999999999999999999999", most),
        ("1e300", most),
        ("soon", None),
        ("-5", None),
        ("NaN", None),
        ("inf", None),
        ("0", None),
        ("", None),
    ] {
        assert_eq!(wait(&[("retry-after", value)]), right, "{value:?}");
    }
    assert_eq!(wait(&[("retry-after-ms", "1500")]), Some(1500));
    assert_eq!(wait(&[("retry-after-ms", "0"), ("retry-after", "1")]), Some(1000), "the longer of both");
    assert_eq!(wait(&[]), None);
}

#[test]
fn statuses_mean_what_they_mean_for_everybody() {
    for (status, kind, retryable) in [
        (400, Abort::InvalidRequest, false),
        (401, Abort::Auth, false),
        (402, Abort::Quota, false),
        (403, Abort::Auth, false),
        (404, Abort::NotFound, false),
        (408, Abort::NoAnswer, true),
        (409, Abort::Provider, true),
        (422, Abort::InvalidRequest, false),
        (429, Abort::RateLimited, true),
        (500, Abort::Provider, true),
        (502, Abort::Provider, true),
        (503, Abort::Overloaded, true),
        (504, Abort::Provider, true),
        (529, Abort::Overloaded, true),
    ] {
        let error = fail::from_response(status, &HeaderMap::new(), b"", UNIX_EPOCH);
        assert_eq!((error.kind, error.retryable, error.reply_begun), (kind, retryable, false), "{status}");
    }
    let quota = br#"{"error":{"message":"You exceeded your current quota","code":"insufficient_quota"}}"#;
    let error = fail::from_response(429, &HeaderMap::new(), quota, UNIX_EPOCH);
    assert_eq!((error.kind, error.retryable), (Abort::Quota, false));
    let long = format!("{{\"error\": \"{}\"}}", "x".repeat(60_000));
    assert!(fail::from_response(400, &HeaderMap::new(), long.as_bytes(), UNIX_EPOCH).message.len() < 1000);
}

fn providers(env: &[(&str, &str)], yaml: &str) -> Result<Providers, String> {
    let env: BTreeMap<&str, &str> = env.iter().copied().collect();
    let config: Config = serde_yaml::from_str(yaml).map_err(|error| error.to_string())?;
    Providers::from_env_and_config(&|name| env.get(name).map(|value| (*value).to_owned()), &config).map_err(|error| error.to_string())
}

fn missing(providers: &Providers, name: &str) -> Option<String> {
    providers.get(name).unwrap().ready().err().map(|error| {
        assert_eq!(error.kind, Abort::Auth);
        error.message
    })
}

#[test]
fn openai_comes_from_the_environment_and_says_which_variable_is_missing() {
    let none = providers(&[], "{}").unwrap();
    assert_eq!(none.names(), ["anthropic", "gemini", "ollama", "openai", "scripted"]);
    assert_eq!(missing(&none, "scripted"), None);
    assert!(missing(&none, "openai").unwrap().contains("set OPENAI_API_KEY"));
    assert!(missing(&providers(&[("OPENAI_API_KEY", "  ")], "{}").unwrap(), "openai").is_some(), "blank is missing");
    assert_eq!(missing(&providers(&[("OPENAI_API_KEY", "sk-x")], "{}").unwrap(), "openai"), None);
    for local in ["http://127.0.0.1:8080/v1", "http://localhost:1234/v1", "http://[::1]:1/v1"] {
        assert_eq!(missing(&providers(&[("OPENAI_BASE_URL", local)], "{}").unwrap(), "openai"), None, "{local}");
    }
    assert!(missing(&providers(&[("OPENAI_BASE_URL", "https://models.example/v1")], "{}").unwrap(), "openai").is_some());
    for bad in ["nonsense", "ftp://x/v1", "http://user:secret@x/v1", "http://x/v1?key=secret"] {
        let error = providers(&[("OPENAI_BASE_URL", bad)], "{}").err().unwrap();
        assert!(error.starts_with("OPENAI_BASE_URL: ") && !error.contains("secret"), "{error}");
    }
}

#[test]
fn the_config_adds_endpoints_and_is_strict() {
    let yaml = "groq: {base_url: \"https://groq.example/v1\", key_env: MY_KEY}\nlocal-llm: {base_url: \"http://127.0.0.1:1/v1\"}";
    let both = providers(&[], yaml).unwrap();
    assert_eq!(both.names(), ["anthropic", "gemini", "groq", "local-llm", "ollama", "openai", "scripted"]);
    assert!(missing(&both, "groq").unwrap().contains("set MY_KEY"));
    assert_eq!(missing(&providers(&[("MY_KEY", "k")], yaml).unwrap(), "groq"), None);
    for (bad, place) in [
        ("groq: {}", "providers.groq"),
        ("scripted: {base_url: \"http://x/v1\"}", "providers.scripted"),
        ("\"a/b\": {base_url: \"http://x/v1\"}", "providers.a/b"),
        ("x: {base_url: \"http://x/v1\", key_env: A, key_file: /b}", "providers.x"),
        ("x: {base_url: \"http://x/v1\", key_file: /no/such/file}", "providers.x.key_file"),
        ("x: {base_url: nonsense}", "providers.x.base_url"),
    ] {
        let error = providers(&[], bad).err().unwrap();
        assert!(error.starts_with(place), "{error}");
    }
    assert!(providers(&[], "x: {base_url: \"http://x/v1\", key: sk-live}").err().unwrap().contains("unknown field"));
}

#[test]
fn a_key_file_must_be_its_owners_alone() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("key");
    std::fs::write(&file, "sk-from-file\n").unwrap();
    let yaml = format!("x: {{base_url: \"http://x.example/v1\", key_file: {file:?}}}");
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o644)).unwrap();
    let error = providers(&[], &yaml).err().unwrap();
    assert!(error.contains("chmod 600") && !error.contains("sk-from-file"), "{error}");
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600)).unwrap();
    assert_eq!(missing(&providers(&[], &yaml).unwrap(), "x"), None);
    std::fs::write(&file, "\n").unwrap();
    assert!(providers(&[], &yaml).err().unwrap().contains("is empty"));
}

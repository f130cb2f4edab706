//! The language as a JSON Schema: for editors, and to name every fault of shape at once.

use std::sync::LazyLock;

use jsonschema::error::ValidationErrorKind;
use serde_json::{Map, Value};

use super::diagnostic::{Faults, nearest};
use super::document::Document;
use super::scan::join;
use super::secrets;

static SCHEMA: LazyLock<Value> = LazyLock::new(build);

/// Words of the language that are to come; they are named as such, not as unknown.
const TO_COME: [&str; 16] = [
    "steps",
    "imports",
    "output",
    "policy",
    "handoffs",
    "approval",
    "mcp",
    "http",
    "shell",
    "context",
    "fallback",
    "on_length",
    "retry",
    "when",
    "workflow",
    "env",
];

/// Returns the editor schema.
pub fn schema() -> Value {
    SCHEMA.clone()
}

fn build() -> Value {
    let mut schema = schemars::schema_for!(Document).to_value();
    without_null(&mut schema);
    if let Value::Object(object) = &mut schema {
        object.insert("title".to_owned(), Value::String("Wren workflow, version 1".to_owned()));
    }
    schema
}

/// Takes `null` out of optional fields: a field is left out or has a value; an empty one is a slip of the pen.
fn without_null(schema: &mut Value) {
    match schema {
        Value::Object(object) => {
            if let Some(Value::Array(types)) = object.get_mut("type") {
                types.retain(|name| name != "null");
                if let [only] = &types[..] {
                    let only = only.clone();
                    object.insert("type".to_owned(), only);
                }
            }
            if let Some(Value::Array(choices)) = object.get_mut("anyOf") {
                choices.retain(|choice| choice.get("type") != Some(&Value::String("null".to_owned())));
                if let [Value::Object(only)] = &choices[..] {
                    let only: Map<String, Value> = only.clone();
                    object.remove("anyOf");
                    object.extend(only);
                }
            }
            object.values_mut().for_each(without_null);
        }
        Value::Array(items) => items.iter_mut().for_each(without_null),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

/// Names every fault of shape of a document.
pub fn check_shape(document: &Value, faults: &mut Faults<'_>) {
    let validator = match jsonschema::validator_for(&SCHEMA) {
        Ok(validator) => validator,
        Err(error) => {
            faults.error("W000", "", format!("the language's own schema is broken: {error}"));
            return;
        }
    };
    for error in validator.iter_errors(document).take(100) {
        let pointer = error.instance_path().to_string();
        let place = dotted(&pointer);
        match error.kind() {
            ValidationErrorKind::AdditionalProperties { unexpected } => {
                for name in unexpected {
                    unknown_field(faults, &pointer, name, &allowed(error.schema_path().as_str()));
                }
            }
            ValidationErrorKind::Required { property } => {
                let name = property.as_str().unwrap_or("?").to_owned();
                faults.key_error("W011", &pointer, format!("{place} lacks the field `{name}`"));
            }
            ValidationErrorKind::Type { .. } | ValidationErrorKind::AnyOf { .. } => {
                let is = kind_of(error.instance());
                let wanted = wanted(error.schema_path().as_str());
                let fault = faults.error("W013", &pointer, format!("{place} is {is} and must be {wanted}"));
                if matches!(&**error.instance(), Value::Number(_) | Value::Bool(_)) && wanted.contains("string") {
                    fault.help = "quote it".to_owned();
                }
            }
            ValidationErrorKind::Enum { .. } | ValidationErrorKind::Constant { .. } | ValidationErrorKind::OneOfNotValid { .. } => {
                let options = options(error.schema_path().as_str());
                let shown = shown(error.instance());
                let fault = faults.error("W014", &pointer, format!("{place} is {shown} and must be one of: {}", options.join(", ")));
                fault.suggestion =
                    error.instance().as_str().and_then(|text| nearest(text, options.iter().map(String::as_str))).unwrap_or("").to_owned();
            }
            // The error's own words would show the value, which may be a secret or very long.
            _ => {
                let why = error.masked_with("this value").to_string();
                faults.error("W013", &pointer, format!("{place}: {why}"));
            }
        }
    }
}

fn unknown_field(faults: &mut Faults<'_>, pointer: &str, name: &str, allowed: &[String]) {
    let at = join(pointer, name);
    if secrets::looks_secret(name) {
        secrets::refuse_field(&at, faults);
        return;
    }
    if TO_COME.contains(&name) {
        faults.key_error("W016", &at, format!("`{name}` is not supported yet"));
        return;
    }
    let fault = faults.key_error("W012", &at, format!("unknown field `{name}` in {}", dotted(pointer)));
    fault.suggestion = nearest(name, allowed.iter().map(String::as_str)).unwrap_or("").to_owned();
    fault.help = format!("allowed: {}", allowed.join(", "));
}

/// Returns the fields that the mapping with this schema may have.
fn allowed(schema_path: &str) -> Vec<String> {
    let owner = schema_path.trim_end_matches("/additionalProperties");
    let properties = resolve(owner).and_then(|schema| schema.get("properties")).and_then(Value::as_object);
    properties.map(|properties| properties.keys().cloned().collect()).unwrap_or_default()
}

/// Returns the words that an enumeration allows.
fn options(schema_path: &str) -> Vec<String> {
    let owner = schema_path.rsplit_once('/').map_or("", |(owner, _)| owner);
    let Some(schema) = resolve(owner) else { return Vec::new() };
    let mut words: Vec<&Value> = schema.get("enum").and_then(Value::as_array).into_iter().flatten().collect();
    words.extend(schema.get("const"));
    words.extend(schema.get("oneOf").and_then(Value::as_array).into_iter().flatten().filter_map(|choice| choice.get("const")));
    words.iter().map(|word| word.as_str().map_or_else(|| word.to_string(), str::to_owned)).collect()
}

/// Returns a value as it may be repeated: short, and no secret.
fn shown(value: &Value) -> String {
    let text = value.to_string();
    if secrets::looks_secret(&text) { "a secret".to_owned() } else { text.chars().take(60).collect() }
}

fn wanted(schema_path: &str) -> String {
    let owner = schema_path.rsplit_once('/').map_or("", |(owner, _)| owner);
    match resolve(owner).and_then(|schema| schema.get("type")) {
        Some(Value::String(name)) => called(name).to_owned(),
        Some(Value::Array(names)) => names.iter().filter_map(Value::as_str).map(called).collect::<Vec<_>>().join(" or "),
        _ => "something else".to_owned(),
    }
}

/// Follows a schema path, references included.
fn resolve(path: &str) -> Option<&'static Value> {
    let root: &'static Value = &SCHEMA;
    let mut at = root;
    for part in path.split('/').skip(1) {
        let part = part.replace("~1", "/").replace("~0", "~");
        if part == "$ref" {
            let target = at.get("$ref")?.as_str()?;
            at = root.pointer(target.trim_start_matches('#'))?;
            continue;
        }
        at = match at {
            Value::Array(items) => items.get(part.parse::<usize>().ok()?)?,
            other => other.get(&part)?,
        };
    }
    Some(at)
}

fn called(name: &str) -> &str {
    match name {
        "object" => "a mapping",
        "array" => "a list",
        "string" => "a string",
        "integer" => "a whole number",
        "number" => "a number",
        "boolean" => "true or false",
        other => other,
    }
}

fn kind_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "empty",
        Value::Bool(_) => "true or false",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "a list",
        Value::Object(_) => "a mapping",
    }
}

/// Returns a pointer as people read it: `agents.lead.limits`.
pub fn dotted(pointer: &str) -> String {
    if pointer.is_empty() {
        return "the document".to_owned();
    }
    pointer.trim_start_matches('/').replace('/', ".").replace("~1", "/").replace("~0", "~")
}

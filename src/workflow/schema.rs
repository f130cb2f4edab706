//! The language as a JSON Schema: for editors, and to name every fault of shape at once.

use std::sync::LazyLock;

use jsonschema::error::ValidationErrorKind;
use jsonschema::{Keyword, ValidationError, Validator};
use serde_json::{Map, Value};

use super::diagnostic::{Faults, nearest};
use super::document::Document;
use super::scan::join;
use super::secrets;

static SCHEMA: LazyLock<Value> = LazyLock::new(build);
static VALIDATOR: LazyLock<Result<Validator, String>> = LazyLock::new(|| {
    let mut schema = SCHEMA.clone();
    mark_whole(&mut schema);
    let options = jsonschema::options().with_keyword(WHOLE, |_, _, _| Ok(Box::new(Whole)));
    options.build(&schema).map_err(|error| error.to_string())
});

/// Marks the fields that hold whole numbers. JSON Schema takes `5.0` and `1e3` for whole; the types behind it do not.
const WHOLE: &str = "x-whole";

struct Whole;

impl<'i> Keyword<'i> for Whole {
    fn validate(&self, instance: &'i Value) -> Result<(), ValidationError<'i>> {
        if self.is_valid(instance) { Ok(()) } else { Err(ValidationError::custom("must be a whole number")) }
    }

    fn is_valid(&self, instance: &'i Value) -> bool {
        // What is no whole number by its value too is the business of `type`.
        instance.as_f64().is_none_or(|number| !instance.is_f64() || number.fract() != 0.0)
    }
}

fn mark_whole(schema: &mut Value) {
    match schema {
        Value::Object(object) => {
            if object.get("type").is_some_and(|name| name == "integer") {
                object.insert(WHOLE.to_owned(), Value::Bool(true));
            }
            object.values_mut().for_each(mark_whole);
        }
        Value::Array(items) => items.iter_mut().for_each(mark_whole),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

/// Says the largest number of a type that its name implies, so that one above it is refused at its place.
fn with_maximum(object: &mut Map<String, Value>) {
    let maximum = match object.get("format").and_then(Value::as_str) {
        Some("uint32") => u64::from(u32::MAX),
        // What a signed number can hold: more is no amount of anything here.
        Some("uint64" | "int64") => i64::MAX.unsigned_abs(),
        _ => return,
    };
    object.entry("maximum").or_insert_with(|| Value::from(maximum));
}

/// Words of the language that are to come; they are named as such, not as unknown.
const TO_COME: [&str; 14] =
    ["steps", "imports", "output", "policy", "handoffs", "approval", "mcp", "http", "shell", "context", "retry", "when", "workflow", "env"];

/// Returns the editor schema.
pub fn schema() -> Value {
    SCHEMA.clone()
}

fn build() -> Value {
    let mut schema = schemars::schema_for!(Document).to_value();
    tighten(&mut schema);
    if let Value::Object(object) = &mut schema {
        object.insert("title".to_owned(), Value::String("Wren workflow, version 1".to_owned()));
    }
    schema
}

/// Says what the derived schema leaves open: numbers have a maximum, and `null` is no value: an optional field is left out or has a value; an empty one is a slip of the pen.
fn tighten(schema: &mut Value) {
    match schema {
        Value::Object(object) => {
            with_maximum(object);
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
            object.values_mut().for_each(tighten);
        }
        Value::Array(items) => items.iter_mut().for_each(tighten),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

/// Names every fault of shape of a document.
pub fn check_shape(document: &Value, faults: &mut Faults<'_>) {
    let validator = match &*VALIDATOR {
        Ok(validator) => validator,
        Err(error) => {
            faults.error("W000", "", format!("the language's own schema is broken: {error}"));
            return;
        }
    };
    let has_steps = document.get("steps").is_some();
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
                let name = property.as_str().unwrap_or("?");
                // A document of steps has no agent and no prompt of its own; that steps are to come is said once.
                if !(has_steps && pointer.is_empty() && matches!(name, "agent" | "prompt")) {
                    faults.key_error("W011", &pointer, format!("{place} lacks the field `{name}`"));
                }
            }
            ValidationErrorKind::Type { .. } | ValidationErrorKind::AnyOf { .. } => wrong_type(&error, &pointer, faults),
            ValidationErrorKind::Enum { .. } | ValidationErrorKind::Constant { .. } | ValidationErrorKind::OneOfNotValid { .. } => {
                wrong_word(&error, &pointer, faults);
            }
            ValidationErrorKind::Minimum { limit } => {
                faults.error("W013", &pointer, format!("{place} is {} and must be at least {limit}", shown(error.instance())));
            }
            ValidationErrorKind::Maximum { limit } => {
                faults.error("W013", &pointer, format!("{place} is {} and must be at most {limit}", shown(error.instance())));
            }
            ValidationErrorKind::Custom { message, .. } => {
                let written = faults.source_of(&pointer).unwrap_or("a fraction").to_owned();
                faults.error("W013", &pointer, format!("{place} is {written} and {message}")).help = "write its digits alone".to_owned();
            }
            // The error's own words would show the value, which may be a secret or very long.
            _ => {
                let why = error.masked_with("this value").to_string();
                faults.error("W013", &pointer, format!("{place}: {why}"));
            }
        }
    }
}

fn wrong_type(error: &ValidationError<'_>, pointer: &str, faults: &mut Faults<'_>) {
    let place = dotted(pointer);
    let instance = error.instance();
    let field = pointer.rsplit_once('/').map_or("", |(_, field)| field);
    if matches!(field, "prompt" | "instructions") && instance.get("file").is_some() {
        let fault = faults.key_error("W016", pointer, format!("{place}: prompt files are not supported yet"));
        fault.help = "write the text here".to_owned();
        return;
    }
    let wanted = wanted(error.schema_path().as_str());
    // JSON has no such numbers, so they arrive as nothing.
    let written = faults.source_of(pointer).unwrap_or("");
    let is_infinite = instance.is_null() && (written.starts_with('.') || written.starts_with("-.") || written.starts_with("+."));
    let is = if is_infinite { format!("`{written}`") } else { kind_of(instance).to_owned() };
    let fault = faults.error("W013", pointer, format!("{place} is {is} and must be {wanted}"));
    if matches!(&**instance, Value::Number(_) | Value::Bool(_)) && wanted.contains("string") {
        fault.help = "quote it".to_owned();
    }
    if is_infinite && wanted.contains("number") {
        fault.help = "write a plain decimal number".to_owned();
    }
}

fn wrong_word(error: &ValidationError<'_>, pointer: &str, faults: &mut Faults<'_>) {
    let instance = error.instance();
    if pointer.ends_with("/on_length") && instance.as_str() == Some("tell") {
        faults.error("W016", pointer, "`on_length: tell` is not supported yet").help = "leave it out, or write `block`".to_owned();
        return;
    }
    let options = options(error.schema_path().as_str());
    let message = format!("{} is {} and must be one of: {}", dotted(pointer), shown(instance), options.join(", "));
    let meant = match &options[..] {
        [only] => Some(only.as_str()),
        _ => instance.as_str().and_then(|text| nearest(text, options.iter().map(String::as_str))),
    };
    faults.error("W014", pointer, message).suggestion = meant.unwrap_or("").to_owned();
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
    const CHARS_MAX: usize = 60;
    let text = value.to_string();
    if secrets::looks_secret(&text) {
        return "a secret".to_owned();
    }
    match text.char_indices().nth(CHARS_MAX) {
        Some((cut, _)) => format!("{}…", &text[..cut]),
        None => text,
    }
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

//! A workflow's inputs: defaults, words of the command line read as what the schema asks for, and every fault at once.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::Diagnostic;
use super::diagnostic::{nearest, placeless};

/// The schemas of the inputs by name.
pub type InputSchemas = BTreeMap<String, Value>;

/// Returns the schema of all inputs together.
pub fn whole_schema(inputs: &InputSchemas) -> Value {
    let required: Vec<&String> = inputs.iter().filter(|(_, schema)| schema.get("default").is_none()).map(|(name, _)| name).collect();
    json!({"type": "object", "properties": inputs, "required": required, "additionalProperties": false})
}

/// Reads the inputs of a submission.
///
/// # Errors
/// Every fault.
pub fn read(inputs: &InputSchemas, text: &str) -> Result<Value, Vec<Diagnostic>> {
    let given: Map<String, Value> = match serde_json::from_str(text) {
        Ok(Value::Object(given)) => given,
        Ok(_) => return Err(vec![fault("the inputs are not a JSON object".to_owned(), String::new())]),
        Err(error) => return Err(vec![fault(format!("the inputs are not valid JSON: {error}"), String::new())]),
    };
    let mut faults = Vec::new();
    let mut values = Map::new();
    for name in given.keys().filter(|name| !inputs.contains_key(*name)) {
        let known: Vec<&str> = inputs.keys().map(String::as_str).collect();
        let help = if known.is_empty() { "the workflow has no inputs".to_owned() } else { format!("known: {}", known.join(", ")) };
        let mut unknown = fault(format!("unknown input `{name}`"), help);
        unknown.suggestion = nearest(name, known).unwrap_or("").to_owned();
        faults.push(unknown);
    }
    for (name, schema) in inputs {
        let value = match (given.get(name), schema.get("default")) {
            (Some(value), _) => coerce(value, schema),
            (None, Some(default)) => default.clone(),
            (None, None) => {
                faults.push(fault(format!("input `{name}` is missing"), format!("pass it with -i {name}=…")));
                continue;
            }
        };
        match faults_of(schema, &value) {
            Ok(found) if found.is_empty() => {
                values.insert(name.clone(), value);
            }
            Ok(found) => faults.push(fault(format!("input `{name}`: {}", found.join("; ")), String::new())),
            Err(error) => faults.push(fault(format!("the schema of input `{name}` is broken: {error}"), String::new())),
        }
    }
    if faults.is_empty() { Ok(Value::Object(values)) } else { Err(faults) }
}

fn fault(message: String, help: String) -> Diagnostic {
    placeless("W030", "", message, help)
}

/// Returns what does not fit.
///
/// # Errors
/// If the schema itself is broken.
pub fn faults_of(schema: &Value, value: &Value) -> Result<Vec<String>, String> {
    let validator = jsonschema::validator_for(schema).map_err(|error| error.to_string())?;
    let words = |error: jsonschema::ValidationError<'_>| {
        let at = error.instance_path().to_string();
        if at.is_empty() { error.to_string() } else { format!("{}: {error}", at.trim_start_matches('/')) }
    };
    Ok(validator.iter_errors(value).take(8).map(words).collect())
}

/// Reads a word of the command line as what the schema asks for. A word that cannot be read so stays a word, and the
/// schema then says what is wrong with it.
fn coerce(value: &Value, schema: &Value) -> Value {
    let Some(text) = value.as_str() else { return value.clone() };
    let kinds: Vec<&str> = match schema.get("type") {
        Some(Value::String(kind)) => vec![kind],
        Some(Value::Array(kinds)) => kinds.iter().filter_map(Value::as_str).collect(),
        _ => Vec::new(),
    };
    // Where a string will do, a word is a string.
    if kinds.is_empty() || kinds.contains(&"string") {
        return value.clone();
    }
    serde_json::from_str(text.trim()).unwrap_or_else(|_| value.clone())
}

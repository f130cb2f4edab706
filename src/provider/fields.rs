//! Looking into providers' JSON, which may lack anything and hold anything.

use serde_json::Value;

/// Returns the text under `key`; `None` if there is none, or none in it.
pub fn text<'a>(value: &'a Value, key: &str) -> Option<&'a str> {
    value.get(key).and_then(Value::as_str).filter(|text| !text.is_empty())
}

/// Returns the list under `key`; an empty one if there is none.
pub fn list<'a>(value: &'a Value, key: &str) -> &'a [Value] {
    value.get(key).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

/// Returns how many bytes a value takes as JSON.
pub fn bytes(value: &Value) -> usize {
    value.to_string().len()
}
